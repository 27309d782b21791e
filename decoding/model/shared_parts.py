"""Of a model, what a head that comes with it may call, but not change.

Knows no heads. Invariant: nothing is copied, but for embeddings that are packed.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from decoding.weights.linear import Embedding, held_by

# Shape suffixes: V vocabulary, E model width.
NORMS = ("norm", "final_layernorm", "final_layer_norm", "ln_f", "embedding_norm")


class SharedParts:
    """config: of the text model. model_type: transformers' name of its type."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.config: Any = model.config.get_text_config()
        self.model_type = str(self.config.model_type)
        self._model: Any = model

    @property
    def embedding(self) -> nn.Module:
        embedding: nn.Module = self._model.get_input_embeddings()
        return embedding

    @property
    def packed_embedding(self) -> Embedding | None:
        """What looks up packed embeddings; None if they are not packed."""
        embedding: Any = self.embedding
        return None if held_by(embedding) is None else embedding.unscaled

    @property
    def embeddings(self) -> torch.Tensor:
        """[V, E], as the model holds them; a copy if they are packed."""
        if self.packed_embedding is not None:
            return self.packed_embedding(torch.arange(self.packed_embedding.num_embeddings))
        weight_VE: torch.Tensor = self._model.get_input_embeddings().weight
        return weight_VE

    @property
    def norm(self) -> nn.Module:
        """The last one, of models that name it as Llama's is."""
        norm: nn.Module = self._model.get_decoder().norm
        return norm

    @property
    def last_norm(self) -> nn.Module | None:
        """The norm before the output, by whatever name models have it; None for a model of another form."""
        decoder = self._model.get_decoder()
        return next((found for name in NORMS if isinstance(found := getattr(decoder, name, None), nn.Module)), None)

    @property
    def output(self) -> nn.Module:
        """The layer that gives logits."""
        output: nn.Module = self._model.get_output_embeddings()
        return output
