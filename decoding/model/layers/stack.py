"""A model's whole forward for a few tokens as one call, from embeddings to logits, if all its layers are fused.

Invariant: logits have the same bits as the model's own forward; a trial at load checks that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn

from decoding.attention.exact import ExactPlan
from decoding.core.layer import LayerSpec
from decoding.errors import PartRefused
from decoding.kernels.cpu.attention.exact import attend
from decoding.kernels.cpu.attention.step_table import Table
from decoding.kernels.cpu.program import NUM_ROWS, TARGET, Call, Program, Rooms
from decoding.kernels.cpu.rows import COSINES, IDS, SINES, look_up
from decoding.model.features import FeatureTap
from decoding.model.layers.cpu_layer import FusedLayer, LayerCalls, Parts
from decoding.model.layers.cpu_parts import OTHER_BITS
from decoding.model.layers.norms import FusedRmsNorm
from decoding.model.replacing.replacer import Calls, Place, Rule
from decoding.model.replacing.row_safe import RotaryTable
from decoding.weights.linear import matrix_of
from decoding.weights.matrix import Matrix

# Shape suffixes: L layers, M tokens and padding, T the most tokens, R tokens that need logits, E width, V vocabulary.
OTHER_FORM = "it has other parts than models of Llama's form"
OTHER_PARTS = "not all of its layers are fused, or its ends have no kernel here"
OF_MODEL, OF_DECODER = {"model", "lm_head"}, {"embed_tokens", "layers", "norm", "rotary_emb"}


class Output(NamedTuple):
    """logits: [1, R, V] in the model's dtype."""

    logits: torch.Tensor


class Ends(NamedTuple):
    """What is looked up first and multiplied by last."""

    embedding: Matrix
    head: Matrix


class Modules(NamedTuple):
    """A model's modules, all in one dtype."""

    embedding: nn.Module
    rotary: RotaryTable
    layers: tuple[FusedLayer, ...]
    norm: FusedRmsNorm
    head: nn.Module


class StackProgram:
    """From tokens' embeddings through layers of Llama's form to logits, as one program. few_rows: of a forward that it
    can run. hidden_LTE: of the latest one each layer's input, then the last one's output."""

    def __init__(
        self,
        ends: Ends,
        layers: Sequence[tuple[Parts, LayerSpec]],
        norm: FusedRmsNorm,
        rooms: Rooms,
    ) -> None:
        embedding, head = ends
        width = norm.width
        self.few_rows = min(head.few_rows, *(parts.few_rows for parts, _ in layers))
        self.hidden_LTE = torch.zeros(len(layers) + 1, self.few_rows, width, dtype=rooms.dtype)
        self._kept = embedding, layers, norm, head, rooms  # whose memory the calls read
        places = [hidden_TE.data_ptr() for hidden_TE in self.hidden_LTE]
        calls = [LayerCalls(parts, spec, rooms, place) for (parts, spec), place in zip(layers, places, strict=False)]
        normed, asked = rooms.numbers("normed", width), rooms.numbers("asked", width)
        embed = embedding.look_up_call(places[0])
        assert embed is not None
        pick = Call(look_up, (normed, asked, 0, 0, width * rooms.dtype.itemsize, 0))
        of_asked = [pick, *head.ready(asked, rooms), head.call(asked, 0, rooms)]
        norms = [*(parts.input_norm for parts, _ in layers), norm]
        phases = [[embed], *_between(calls, norms, places, normed), *([call] for call in of_asked)]
        self._program = program = Program(phases)
        self._embed, self._asked = program.fields_of(embed), [program.fields_of(call) for call in of_asked]
        self._rotations = program.fields_of_all(calls[0].rotate)
        self._attentions, self._num_logits = program.fields_of_all(attend), head.shape[0]

    def run(
        self,
        ids_1M: torch.Tensor,
        tables: tuple[torch.Tensor, torch.Tensor],
        write: Callable[[Table], None],
        rows_R: torch.Tensor,
    ) -> torch.Tensor:
        """[1, R, V]. ids_1M, rows_R: int64. tables: cosines and sines. write: fills in the fields of all layers'
        attention."""
        program, (cosines, sines) = self._program, tables
        logits_1RV = self.hidden_LTE.new_empty(1, len(rows_R), self._num_logits)
        program.begin(ids_1M.numel())
        self._embed[IDS] = ids_1M.data_ptr()
        self._rotations[:, COSINES], self._rotations[:, SINES] = cosines.data_ptr(), sines.data_ptr()
        write(self._attentions)
        for call in self._asked:
            call[NUM_ROWS] = len(rows_R)
        self._asked[0][IDS], self._asked[-1][TARGET] = rows_R.data_ptr(), logits_1RV.data_ptr()
        program.run(torch.get_num_threads())
        return logits_1RV


class Stack:
    """Replaces the model's forward. ends: of its modules. taps: given the layers' inputs here, since their hooks run
    only with many tokens."""

    def __init__(self, modules: Modules, ends: Ends, taps: Sequence[FeatureTap]) -> None:
        self._modules, self._taps, layers = modules, taps, modules.layers
        parts = [(layer.parts, layer.spec) for layer in layers]
        self._program = StackProgram(ends, parts, modules.norm, layers[0].rooms)
        self._group = layers[0].spec.group

    def __call__(
        self,
        *,
        position_ids: torch.Tensor,
        use_cache: bool,
        logits_to_keep: torch.Tensor,
        input_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
    ) -> Output:
        """Argument names are those of transformers; int64 [1, M] and [R], and either tokens, int64 [1, M], or their
        embeddings [1, M, E]."""
        if inputs_embeds is not None:
            hidden_1ME = inputs_embeds
        else:
            assert input_ids is not None
            if input_ids.numel() <= self._program.few_rows:
                return Output(self._run_program(input_ids, position_ids, logits_to_keep))
            hidden_1ME = self._modules.embedding(input_ids)
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
        return Output(self._modules.head(self._modules.norm(hidden_1ME)[:, logits_to_keep]))

    def _run_program(self, ids_1M: torch.Tensor, positions_1M: torch.Tensor, rows_R: torch.Tensor) -> torch.Tensor:
        """[1, R, V]"""
        layers, hidden_LME = self._modules.layers, self._program.hidden_LTE[:, : ids_1M.numel()]
        plan = layers[0].seam.plan
        assert isinstance(plan, ExactPlan), plan
        tables = self._modules.rotary.forward(hidden_LME, positions_1M)
        logits_1RV = self._program.run(ids_1M, tables, partial(plan.write, slice(len(layers)), self._group), rows_R)
        for tap in self._taps:
            tap.see(hidden_LME)
        return logits_1RV


def ends_of(embedding: nn.Module, rotary: object, norm: object, head: nn.Module) -> Ends | None:
    """What a program can take of a model's first and last modules; None where one has another form or no kernel."""
    looked_up, multiplied = matrix_of(embedding), matrix_of(head)
    if not isinstance(rotary, RotaryTable) or not isinstance(norm, FusedRmsNorm):
        return None
    if looked_up is None or looked_up.look_up_call(0) is None or multiplied is None or multiplied.few_rows == 0:
        return None
    return Ends(looked_up, multiplied)


def stack_rule(taps: Sequence[FeatureTap], check: Callable[[Stack], bool]) -> Rule:
    """Of a model as a whole. check: whether the model's forwards have the same bits by it."""

    def check_bits(stack: Stack, _place: Place, _calls: Calls) -> None:
        if not check(stack):
            raise PartRefused(OTHER_BITS)

    return Rule("model in one call", lambda _place: True, lambda place: [stack_of(place.module, taps)], check_bits)


def stack_of(model: nn.Module, taps: Sequence[FeatureTap]) -> Stack:
    """A stack of the model's modules, still to be tried. Raises PartRefused where the model has another form."""
    children: dict[str, Any] = dict(model.named_children())
    parts: dict[str, Any] = dict(children["model"].named_children()) if children.keys() == OF_MODEL else {}
    if parts.keys() != OF_DECODER:
        raise PartRefused(OTHER_FORM)
    layers, norm, rotary, head = tuple(parts["layers"]), parts["norm"], parts["rotary_emb"], children["lm_head"]
    ends = ends_of(parts["embed_tokens"], rotary, norm, head)
    if ends is None or not _are_alike(layers):
        raise PartRefused(OTHER_PARTS)
    return Stack(Modules(parts["embed_tokens"], rotary, layers, norm, head), ends, taps)


def _between(
    calls: Sequence[LayerCalls], norms: Sequence[FusedRmsNorm], places: Sequence[int], normed: int
) -> list[list[Call]]:
    """The phases from the embeddings to the final norm. Each layer's last sum is computed by the norm after it."""
    targets = [*(each.inputs for each in calls), normed]
    phases = [[norms[0].call(places[0], targets[0])]]
    for each, norm, place, target in zip(calls, norms[1:], places[1:], targets[1:], strict=True):
        phases += [*each.phases(), [norm.call_after(each.summed, each.mixed, place, target)]]
    return phases


def _are_alike(layers: Sequence[Any]) -> bool:
    """Whether these are all of the model's attention layers in order, fused, with equal query heads per kv head."""
    if not all(isinstance(layer, FusedLayer) for layer in layers):
        return False
    specs = [layer.spec for layer in layers]
    return [spec.index for spec in specs] == list(range(len(specs))) and len({spec.group for spec in specs}) == 1
