"""A block head's forward whose few rows run as one program, from their tokens to the logits, on the CPU.

Knows nothing of files or sequences. Invariant: logits are those of the head's own modules up to rounding, as a trial
has shown whoever made it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from decoding.attention.exact import ExactAttention
from decoding.cache.kv_store import KvStore
from decoding.core.layer import LayerSpec
from decoding.drafting.block.block_step import Block, block_step, tables_of
from decoding.drafting.block.network import BlockHead
from decoding.kernels.cpu.attention.step_table import Table
from decoding.kernels.cpu.program import MOST_ROWS, Rooms
from decoding.model.layers.cpu_parts import parts_of
from decoding.model.layers.stack import StackProgram, ends_of
from decoding.model.replacing.row_safe import RotaryTable

# Shape suffixes: R rows that are asked of, V vocabulary.


class FusedBlock:
    """few_rows: of a forward that it can run. specs: of the layers; are_causal: of each."""

    def __init__(
        self, program: StackProgram, rotary: RotaryTable, specs: Sequence[LayerSpec], are_causal: Sequence[bool]
    ) -> None:
        self.few_rows = program.few_rows
        self._program, self._rotary, self._are_causal = program, rotary, are_causal
        self._backend, self._group = ExactAttention(specs), specs[0].group

    def run(self, blocks: Sequence[Block], store: KvStore, rows_R: NDArray[np.int64]) -> torch.Tensor | None:
        """[1, R, V]; None where the store has no room for all rows."""
        tables = tables_of(blocks, store.spare_blocks)
        if tables is None:
            return None
        steps = {kind: block_step(blocks, tables, store, is_causal=kind) for kind in set(self._are_causal)}
        plans = {kind: self._backend.prepare(step) for kind, step in steps.items()}
        step = steps[self._are_causal[0]]

        def write(fields: Table) -> None:
            for index, kind in enumerate(self._are_causal):
                plans[kind].write(index, self._group, fields[index])

        positions_1M = torch.from_numpy(step.positions_M)[None]
        rotary = self._rotary.forward(self._program.hidden_LTE, positions_1M)
        return self._program.run(torch.from_numpy(step.ids_M)[None], rotary, write, torch.from_numpy(rows_R))


def fused_block(head: BlockHead, specs: Sequence[LayerSpec]) -> FusedBlock | None:
    """What might stand for a head's forwards, by its parts; None for one of another form."""
    config = head.config
    hides_rows = any(  # of a block from those before them, which the kernel does not
        0 < window < config.block_len and not is_causal
        for window, is_causal in zip(config.windows, config.are_causal, strict=True)
    )
    layers = [parts_of(dict(each.named_children()), spec) for each, spec in zip(head.layers, specs, strict=True)]
    modules = dict[str, Any](head.named_children())
    norm, rotary = modules["norm"], modules["rotary_emb"]
    ends = ends_of(modules["embed_tokens"], rotary, norm, modules["lm_head"])
    known = [(parts, spec) for parts, spec in zip(layers, specs, strict=True) if parts is not None]
    if hides_rows or config.embedding_scale != 1 or ends is None or len(known) < len(layers):
        return None
    program = StackProgram(ends, known, norm, Rooms(MOST_ROWS, norm.weight.dtype))
    return FusedBlock(program, rotary, specs, config.are_causal)
