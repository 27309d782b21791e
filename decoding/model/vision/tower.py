"""The part of a model that sees: transformers' own tower and projector, which make rows of pictures.

Knows nothing of tokens, requests or what is kept. Invariant: each picture is seen alone, on a number of threads that
never changes, so that equal pictures have equal rows.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_MAPPING

from decoding.config import EngineConfig
from decoding.core.picture import Picture
from decoding.errors import ConfigError, listed
from decoding.model.blueprint import size_of
from decoding.model.checkpoint import identity
from decoding.model.files.gguf_place import gguf_paths
from decoding.model.memory import check_weights_fit
from decoding.model.refusal import refusing
from decoding.model.vision.families import LANGUAGE_PARTS, image_token_id, sees, why_not
from decoding.model.weights import check_numbers

# Shape suffixes: N rows of a picture, E width of the text model.


class Tower:
    """model: a model that sees, without its text part, in evaluation mode. width: of the text model. identity: changes
    only with its weights."""

    def __init__(self, model: PreTrainedModel, config: Any, width: int, num_threads: int) -> None:
        self._model: Any = model
        self._width, self._num_threads = width, num_threads
        self._arguments = frozenset(inspect.signature(model.get_image_features).parameters)
        self.image_token_id = image_token_id(config)
        self.identity = identity(model)
        self.num_bytes = sum(each.nbytes for each in model.parameters())

    def see(self, picture: Picture) -> torch.Tensor:
        """[N, E], on the model's device and in its dtype. Raises ValueError where the picture has not as many rows as
        places in its prompt. May be called by any thread, one at a time."""
        torch.set_num_threads(self._num_threads)
        inputs = {name: self._placed(torch.from_numpy(each.array())) for name, each in picture.inputs.items()}
        if unknown := inputs.keys() - self._arguments:
            raise ValueError(f"the tower has no arguments {listed(sorted(unknown))}")
        with torch.inference_mode():
            seen = self._model.get_image_features(**inputs, return_dict=True).pooler_output
        pieces = [seen] if isinstance(seen, torch.Tensor) else list(seen)
        rows_NE = torch.cat([each.reshape(-1, each.shape[-1]) for each in pieces])
        if rows_NE.shape != (picture.num_rows, self._width):
            raise ValueError(f"the tower gave {tuple(rows_NE.shape)}, for {picture.num_rows} places in the prompt")
        return rows_NE.contiguous()

    def _placed(self, numbers: torch.Tensor) -> torch.Tensor:
        dtype = self._model.dtype if numbers.is_floating_point() else numbers.dtype
        return numbers.to(self._model.device, dtype)


def load_tower(
    folder: str, config: EngineConfig, model: PreTrainedModel, num_threads: int
) -> tuple[Tower | None, str | None]:
    """The tower of the model in a folder or on the hub, beside its text model, which is loaded; None with the reason, a
    clause, where it has none that can be served. Raises ConfigError and ModelRefused where it should have one and its
    files are broken."""
    if gguf_paths(config.model, config.gguf_file, config.revision):
        return None, "of GGUF files the text model alone is read"
    origin = {"revision": config.revision, "trust_remote_code": config.trust_remote_code}
    whole = AutoConfig.from_pretrained(folder, **origin)
    if not sees(whole):
        return None, "it reads text alone"
    if (reason := why_not(whole)) is not None:
        return None, reason
    if not config.images:
        return None, "it is served with --no-images"
    if getattr(whole, "quantization_config", None) is not None:
        return None, "the towers of quantised checkpoints are not read"
    with refusing(f"the tower of {config.model!r} cannot be loaded"):
        tower = _loaded(folder, whole, origin, model)
    return Tower(tower.eval(), whole, model.get_input_embeddings().embedding_dim, num_threads), None


def _loaded(folder: str, whole: Any, origin: dict[str, Any], model: PreTrainedModel) -> PreTrainedModel:
    kind = _without_text(MODEL_MAPPING[type(whole)])
    size = size_of(lambda: kind(whole))
    check_weights_fit(size * model.dtype.itemsize, model.device, size)
    tower, found = kind.from_pretrained(
        folder, config=whole, dtype=model.dtype, output_loading_info=True, ignore_mismatched_sizes=True, **origin
    )
    if misfits := [name for name, *_ in found["mismatched_keys"]]:
        raise ConfigError(f"the weights of its tower do not fit its config.json: {listed(misfits)}")
    if found["missing_keys"]:
        raise ConfigError(f"the weights of its tower lack {listed(sorted(found['missing_keys']))}")
    tower.to(model.device)
    check_numbers(tower)
    loaded: PreTrainedModel = tower
    return loaded


def _without_text(kind: type[PreTrainedModel]) -> Any:
    """The class, whose models have no text part."""

    def begin(self: nn.Module, config: Any) -> None:
        build: Callable[..., None] = kind.__init__
        build(self, config)
        for name in LANGUAGE_PARTS:
            if hasattr(self, name):
                setattr(self, name, None)

    return type(kind.__name__, (kind,), {"__init__": begin, "__module__": kind.__module__})
