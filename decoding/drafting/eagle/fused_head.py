"""A head's forward whose few rows run as one call, from their tokens' embeddings to the logits, on the CPU.

Knows nothing of files or sequences. Invariant: hidden states and logits have the bits of the head's own modules, as a
trial has shown whoever made it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from decoding.attention.exact import ExactPlan
from decoding.cache.batch import StepBatch
from decoding.core.layer import LayerSpec
from decoding.drafting.eagle.network import EagleHead
from decoding.drafting.mtp.network import MtpHead
from decoding.kernels.cpu.attention.exact import attend
from decoding.kernels.cpu.program import NUM_ROWS, SOURCE, TARGET, Call, Program, Rooms
from decoding.kernels.cpu.rows import COSINES, IDS, SINES, add_floats, add_halves, look_up
from decoding.model.layers.cpu_layer import LayerCalls, Parts
from decoding.model.layers.cpu_parts import parts_of
from decoding.model.layers.norms import FusedRmsNorm
from decoding.model.layers.stack import Ends, ends_of
from decoding.model.replacing.row_safe import RotaryTable

# Shape suffixes: M rows of the step, T rows of a room, R rows that are asked of, V vocabulary, D head width, E width,
# W draft vocabulary.


class HeadParts(NamedTuple):
    """Of a head, and two flags of its config. hidden_norm: of the hidden state, beside the layer's own of the
    embedding; norm: behind the layer."""

    ends: Ends
    rotary: RotaryTable
    hidden_norm: FusedRmsNorm
    layer: Parts
    norm: FusedRmsNorm
    norm_before_residual: bool
    norm_output: bool


class FusedHead:
    """few_rows: of a forward that it can run."""

    def __init__(self, parts: HeadParts, spec: LayerSpec) -> None:
        embedding, logits = parts.ends
        self.few_rows = min(parts.layer.few_rows, logits.few_rows)
        self._parts, self._group = parts, spec.group
        width, dtype = parts.norm.width, embedding.dtype
        self._rooms = rooms = Rooms(self.few_rows, dtype)
        row_bytes = width * dtype.itemsize
        self._kept_TE = torch.zeros(self.few_rows, width, dtype=dtype)  # of the rows that are asked of
        embedded, result = rooms.numbers("embedded", width), rooms.numbers("result", width)
        kept = self._kept_TE.data_ptr()
        residual = rooms.numbers("residual", width) if parts.norm_before_residual else 0
        layer = LayerCalls(parts.layer, spec, rooms, residual)
        embed = embedding.look_up_call(embedded)
        assert embed is not None
        norm = parts.layer.input_norm.call(embedded, layer.inputs, step=2 * row_bytes)
        hidden = [parts.hidden_norm.call(0, layer.inputs + row_bytes, step=2 * row_bytes)]
        if parts.norm_before_residual:
            hidden.append(parts.hidden_norm.call(0, residual))
        add_rows = add_halves if dtype == torch.bfloat16 else add_floats
        add = Call(add_rows, (layer.summed, result, 0, 0, width, layer.mixed))
        normed = kept if parts.norm_output else layer.normed
        asked = [
            Call(look_up, (result, kept, 0, 0, row_bytes, 0)),
            parts.norm.call(kept, normed),
            *logits.ready(normed, rooms),
            logits.call(normed, 0, rooms),
        ]
        phases = [[embed], [norm, *hidden], *layer.phases(), [add], *([call] for call in asked)]
        self._program = program = Program(phases)
        self._embed, self._asked = program.fields_of(embed), [program.fields_of(call) for call in asked]
        readers = hidden if parts.norm_before_residual else [*hidden, layer.middle]
        self._readers = [program.fields_of(call) for call in readers]  # of the hidden states that come in
        self._rotations = program.fields_of_all(layer.rotate)
        self._attention = program.fields_of_all(attend)

    def run(self, batch: StepBatch, hidden_ME: torch.Tensor, plan: ExactPlan) -> tuple[torch.Tensor, torch.Tensor]:
        """Of the rows `batch.logit_rows_R` what goes on to the next depth, [R, E], and logits, [R, W]."""
        program, num_asked, hidden_ME = self._program, len(batch.logit_rows_R), hidden_ME.contiguous()
        logits_RW = torch.empty(num_asked, self._parts.ends.head.shape[0], dtype=hidden_ME.dtype)
        cosines_MD, sines_MD = self._parts.rotary.forward(hidden_ME, torch.from_numpy(batch.positions_M))
        program.begin(batch.num_tokens)
        self._embed[IDS] = batch.ids_M.ctypes.data
        for reader in self._readers:
            reader[SOURCE] = hidden_ME.data_ptr()
        self._rotations[:, COSINES], self._rotations[:, SINES] = cosines_MD.data_ptr(), sines_MD.data_ptr()
        plan.write(0, self._group, self._attention)
        for call in self._asked:
            call[NUM_ROWS] = num_asked
        self._asked[0][IDS] = batch.logit_rows_R.ctypes.data
        self._asked[-1][TARGET] = logits_RW.data_ptr()
        program.run(torch.get_num_threads())
        return self._kept_TE[:num_asked].clone(), logits_RW


def fused_head(head: EagleHead | MtpHead, spec: LayerSpec) -> FusedHead | None:
    """What might stand for a head's forwards, by its parts; None for one of another form."""
    if not isinstance(head, EagleHead):
        return None
    children: dict[str, Any] = dict(head.layers[0].named_children())
    hidden_norm, modules = children.pop("hidden_norm"), dict[str, Any](head.named_children())
    layer = parts_of(children, spec, num_inputs=2)
    norm, rotary = modules["norm"], modules["rotary_emb"]
    ends = ends_of(head.embed_tokens, rotary, norm, modules["lm_head"])
    if layer is None or ends is None or not isinstance(hidden_norm, FusedRmsNorm):
        return None
    flags = head.config.norm_before_residual, head.config.norm_output
    return FusedHead(HeadParts(ends, rotary, hidden_norm, layer, norm, *flags), spec)
