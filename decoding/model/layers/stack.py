"""A model's forward whose few rows run as one call from the first layer to the last norm, where all layers are fused.

Invariant: logits have the bits of the model's own forward, which a trial has shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from decoding.attention.exact import ExactPlan
from decoding.attention.exact_kernel import attend
from decoding.attention.program import Call, Program
from decoding.model.features import FeatureTap
from decoding.model.layers.decoder_layer import FusedLayer, LayerCalls
from decoding.model.layers.norms import FusedRmsNorm
from decoding.model.layers.row_kernels import COSINES, SINES
from decoding.model.rowwise import RotaryTable

# Shape suffixes: L layers, M model rows, T rows of a room, R rows that need logits, E width, V vocabulary.
OF_MODEL, OF_DECODER = {"model", "lm_head"}, {"embed_tokens", "layers", "norm", "rotary_emb"}


class Output(NamedTuple):
    """logits: [1, R, V] in the model's dtype."""

    logits: torch.Tensor


class Modules(NamedTuple):
    """Of a model. embedding: [V, E]."""

    embedding: torch.Tensor
    rotary: RotaryTable
    layers: tuple[FusedLayer, ...]
    norm: FusedRmsNorm
    head: nn.Module


class Stack:
    """Stands for the model. taps: told what goes into the layers, as hooks tell them where rows are many."""

    def __init__(self, modules: Modules, taps: Sequence[FeatureTap]) -> None:
        self._modules, self._taps = modules, taps
        layers, width, dtype = modules.layers, modules.norm.width, modules.embedding.dtype
        self._few_rows = min(layer.parts.few_rows for layer in layers)
        self._hidden_LTE = torch.zeros(len(layers) + 1, self._few_rows, width, dtype=dtype)  # and what leaves the last
        self._normed_TE = torch.zeros(self._few_rows, width, dtype=dtype)
        sources = [hidden_TE.data_ptr() for hidden_TE in self._hidden_LTE]
        calls = [
            LayerCalls(layer.parts, layer.spec, layer.rooms, source)
            for layer, source in zip(layers, sources, strict=False)
        ]
        self._program = Program(self._phases(calls, sources))
        self._rotations = self._program.fields_of_all(calls[0].rotate)
        self._attentions = self._program.fields_of_all(attend)

    def __call__(
        self, input_ids: torch.Tensor, position_ids: torch.Tensor, use_cache: bool, logits_to_keep: torch.Tensor
    ) -> Output:
        """Names are those of transformers; int64 [1, M], [1, M] and [R]."""
        if input_ids.numel() <= self._few_rows:
            normed_ME = self._run_program(input_ids[0], position_ids)
        else:
            normed_ME = self._run_layers(input_ids, position_ids, use_cache)
        return Output(self._modules.head(normed_ME[None, logits_to_keep]))

    def _run_program(self, ids_M: torch.Tensor, positions_1M: torch.Tensor) -> torch.Tensor:
        num_rows = len(ids_M)
        hidden_LME = self._hidden_LTE[:, :num_rows]
        torch.index_select(self._modules.embedding, 0, ids_M, out=hidden_LME[0])
        cosines, sines = self._modules.rotary.forward(hidden_LME[:1], positions_1M)
        plan, layers = self._modules.layers[0].seam.plan, self._modules.layers
        assert isinstance(plan, ExactPlan), plan
        self._program.begin(num_rows)
        self._rotations[:, COSINES], self._rotations[:, SINES] = cosines.data_ptr(), sines.data_ptr()
        plan.write(slice(len(layers)), layers[0].spec.group, self._attentions)
        self._program.run(torch.get_num_threads())
        for tap in self._taps:
            tap.see(hidden_LME)
        return self._normed_TE[:num_rows]

    def _run_layers(self, input_ids: torch.Tensor, position_ids: torch.Tensor, use_cache: bool) -> torch.Tensor:
        hidden_1ME = nn.functional.embedding(input_ids, self._modules.embedding)
        tables = self._modules.rotary.forward(hidden_1ME, position_ids)
        for layer in self._modules.layers:
            hidden_1ME = layer(
                hidden_1ME,
                attention_mask=None,
                position_embeddings=tables,
                position_ids=position_ids,
                past_key_values=None,
                use_cache=use_cache,
            )
        return self._modules.norm(hidden_1ME)[0]

    def _phases(self, calls: Sequence[LayerCalls], sources: Sequence[int]) -> list[list[Call]]:
        """The sum that ends a layer is made by the norm behind it."""
        layers, norm = self._modules.layers, self._modules.norm
        norms = [*(layer.parts.input_norm for layer in layers[1:]), norm]
        targets = [*(each.normed for each in calls[1:]), self._normed_TE.data_ptr()]
        phases = [[layers[0].parts.input_norm.call(sources[0], calls[0].normed)]]
        for layer, norm, source, target in zip(calls, norms, sources[1:], targets, strict=True):
            phases += [*layer.phases(), [norm.call_after(layer.summed, layer.mixed, source, target)]]
        return phases


def stack_of(model: nn.Module, taps: Sequence[FeatureTap]) -> Stack | None:
    """What might stand for the model's own forward."""
    children: dict[str, Any] = dict(model.named_children())
    if children.keys() != OF_MODEL:
        return None
    parts: dict[str, Any] = dict(children["model"].named_children())
    if parts.keys() != OF_DECODER:
        return None
    layers, norm, rotary = tuple(parts["layers"]), parts["norm"], parts["rotary_emb"]
    are_known = all(isinstance(layer, FusedLayer) for layer in layers) and isinstance(norm, FusedRmsNorm)
    if not are_known or not isinstance(rotary, RotaryTable) or not _are_alike(layers):
        return None
    modules = Modules(parts["embed_tokens"].weight.detach(), rotary, layers, norm, children["lm_head"])
    return Stack(modules, taps)


def _are_alike(layers: Sequence[FusedLayer]) -> bool:
    """Whether they are all that attends, in order, with as many query heads to a kv head."""
    specs = [layer.spec for layer in layers]
    return [spec.index for spec in specs] == list(range(len(specs))) and len({spec.group for spec in specs}) == 1
