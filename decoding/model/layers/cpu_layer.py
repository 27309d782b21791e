"""A decoder layer of Llama's form that runs a few tokens in one call, from the first norm to the last sum.

The form: norm, attention with rotation, sum, norm, gated MLP or experts, sum, as in Llama, Mistral, Qwen and others. A
row is a token. Knows nothing of how such layers are found. Invariant: there is one copy of the weights; with many rows
the transformers layer itself runs.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from decoding.attention.exact import ExactPlan
from decoding.core.layer import LayerSpec
from decoding.kernels.cpu.attention import call_table
from decoding.kernels.cpu.attention.exact import attend
from decoding.kernels.cpu.program import SOURCE, TARGET, Call, Program, Rooms
from decoding.kernels.cpu.rows import (
    COSINES,
    SINES,
    add_floats,
    add_halves,
    rotate_floats,
    rotate_halves,
)
from decoding.model.layers.form import StandIn
from decoding.model.layers.mlp import Mlp, linear_phases
from decoding.model.layers.norms import FusedRmsNorm
from decoding.model.seam import Seam
from decoding.weights.matrix import Matrix


@dataclass(frozen=True, slots=True)
class Parts:
    """What a layer computes with. head_norms: those of queries and of keys, or none."""

    input_norm: FusedRmsNorm
    query: Matrix
    key: Matrix
    value: Matrix
    head_norms: tuple[FusedRmsNorm, ...]
    output: Matrix
    mlp_norm: FusedRmsNorm
    mlp: Mlp

    @property
    def norms(self) -> tuple[FusedRmsNorm, ...]:
        return (self.input_norm, self.mlp_norm, *self.head_norms)

    @property
    def linears(self) -> tuple[Matrix, ...]:
        return (self.query, self.key, self.value, self.output)

    @property
    def few_rows(self) -> int:
        return min(self.mlp.few_rows, *(each.few_rows for each in self.linears))


class FusedLayer(StandIn):
    """parts: of `layer`, whose attention is `spec` of `seam`."""

    def __init__(self, layer: nn.Module, parts: Parts, seam: Seam, spec: LayerSpec, rooms: Rooms) -> None:
        super().__init__(layer, spec, parts.few_rows * parts.input_norm.width)
        self.parts, self.seam, self.rooms = parts, seam, rooms
        self._width = parts.input_norm.width
        calls = LayerCalls(parts, spec, rooms)
        first = parts.input_norm.call(0, calls.inputs)
        add = add_halves if rooms.dtype == torch.bfloat16 else add_floats
        last = Call(add, (calls.summed, 0, 0, 0, self._width, calls.mixed))
        self._program = program = Program([[first], *calls.phases(), [last]])
        self._first, self._middle, self._last = map(program.fields_of, (first, calls.middle, last))
        self._rotations = program.fields_of_all(calls.rotate)
        self._attention = program.fields_of_all(attend)

    def _run(self, hidden_1ME: torch.Tensor, cosines_1MD: torch.Tensor, sines_1MD: torch.Tensor) -> torch.Tensor:
        result = torch.empty_like(hidden_1ME)
        program, plan = self._program, self.seam.plan
        assert isinstance(plan, ExactPlan), plan
        program.begin(hidden_1ME.numel() // self._width)
        self._first[SOURCE] = self._middle[SOURCE] = hidden_1ME.data_ptr()
        self._last[TARGET] = result.data_ptr()
        self._rotations[:, COSINES], self._rotations[:, SINES] = cosines_1MD.data_ptr(), sines_1MD.data_ptr()
        plan.write(self.spec.index, self.spec.group, self._attention)
        program.run(torch.get_num_threads())
        return result


class LayerCalls:
    """The calls between a layer's first norm, which fills `inputs`, and its last sum, which adds `summed` and `mixed`.

    source: address of the layer's input; 0 if each step writes it into the call `middle`. Each step also writes its
    rotary tables into the calls of `rotate`, and its plan into those of `attend`.
    """

    def __init__(self, parts: Parts, spec: LayerSpec, rooms: Rooms, source: int = 0) -> None:
        width = parts.input_norm.width
        self._parts, self._spec, self._rooms = parts, spec, rooms
        self.normed, self.summed = rooms.numbers("normed", width), rooms.numbers("summed", width)
        self.mixed = rooms.numbers("mixed", width)
        self.inputs = rooms.numbers("normed", parts.query.shape[1])
        self._query = rooms.numbers("query", parts.query.shape[0])
        self._key = rooms.numbers("key", parts.key.shape[0])
        self._value = rooms.numbers("value", parts.value.shape[0])
        self._attended = rooms.numbers("attended", parts.output.shape[1])
        self.rotate = rotate_halves if rooms.dtype == torch.bfloat16 else rotate_floats
        self.middle = parts.mlp_norm.call_after(source, self.mixed, self.summed, self.normed)

    def phases(self) -> list[list[Call]]:
        parts, rooms = self._parts, self._rooms
        inputs = ((parts.query, self._query), (parts.key, self._key), (parts.value, self._value))
        return [
            *linear_phases(rooms, self.inputs, *inputs),
            *self._head_norms(),
            self._rotations(),
            [self._attention()],
            *linear_phases(rooms, self._attended, (parts.output, self.mixed)),
            [self.middle],
            *parts.mlp.phases(self.normed, self.mixed, rooms),
        ]

    def _head_norms(self) -> list[list[Call]]:
        norms = zip(self._parts.head_norms, self._heads(), strict=False)
        calls = [norm.call(start, start, count) for norm, (start, count) in norms]
        return [calls] if calls else []

    def _rotations(self) -> list[Call]:
        width = self._spec.key_dim
        return [Call(self.rotate, (start, 0, 0, 0, width, count, 0, 0)) for start, count in self._heads()]

    def _heads(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """Address and number of heads of the queries, and of the keys."""
        return (self._query, self._spec.num_query_heads), (self._key, self._spec.num_kv_heads)

    def _attention(self) -> Call:
        spec, fields = self._spec, [0] * call_table.NUM_FIELDS
        item = self._rooms.dtype.itemsize
        fields[call_table.OUT], fields[call_table.ITEM] = self._attended, item
        for address, start, num_heads, width in (
            (call_table.QUERY, self._query, spec.num_query_heads, spec.key_dim),
            (call_table.KEY, self._key, spec.num_kv_heads, spec.key_dim),
            (call_table.VALUE, self._value, spec.num_kv_heads, spec.value_dim),
        ):
            steps = call_table.HEAD_STEPS[address]
            fields[address] = start
            fields[steps : steps + 2] = (width * item, num_heads * width * item)
        return Call(attend, tuple(fields))
