"""Launches a step's sampling kernels and reads their results.

Owns the scratch memory of a step. Invariant: the host waits only in `Launched.wait`, and one copy brings all results
back.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from decoding.core.top_tokens import TopTokens
from decoding.core.tree import IntArray
from decoding.sampling.device.plan import Plan, found_top

# Shape suffixes: R rows of logits, V vocabulary, J jobs, C blocks of the vocabulary, E edited rows, K top tokens,
# H ranked rows, L scored tokens, N nodes.
BLOCK = 2048  # tokens of the vocabulary that one program reads
ENTRIES = 512  # entries of a list that are changed at a time
FEWEST_NODES = 64  # a walk is compiled for at least so many nodes


class Kernels(NamedTuple):
    """Triton's, each launched as `kernel[grid](arguments)`, or what stands for them."""

    scan: Any
    draw: Any
    walk: Any
    rank: Any
    score: Any
    mask: Any
    change: Any


@cache
def triton_kernels() -> Kernels:
    from decoding.kernels.gpu.sampling.draw import draw  # Triton may not be installed elsewhere
    from decoding.kernels.gpu.sampling.edit import change, mask
    from decoding.kernels.gpu.sampling.scan import rank, scan, score
    from decoding.kernels.gpu.sampling.walk import walk

    return Kernels(scan, draw, walk, rank, score, mask, change)


class Results:
    """The results of a plan's kernels, on the host. words: int32, laid out by the plan."""

    def __init__(self, plan: Plan, words: IntArray) -> None:
        values = words.view(np.float32)
        ranked = slice(plan.first_ranked, plan.first_scored)
        ranks_HX = words[ranked].reshape(-1, 1 + 2 * plan.num_top)
        rank_values_HX = values[ranked].reshape(ranks_HX.shape)
        self.words = words
        self.masses_H = rank_values_HX[:, 0].astype(np.float64)  # of a row, relative to its best token
        self.top_ids_HK = ranks_HX[:, 1 : 1 + plan.num_top]
        self.top_logits_HK = rank_values_HX[:, 1 + plan.num_top :].astype(np.float64)
        self.own_logits_L = values[plan.first_scored :: 2].astype(np.float64)
        self.num_higher_L = words[plan.first_scored + 1 :: 2]

    def top(self, rows: slice, num_top: int) -> TopTokens:
        """The `num_top` most likely tokens of some of the ranked rows."""
        logits_RK = self.top_logits_HK[rows, :num_top]
        shares_RK = np.exp(logits_RK - logits_RK[:, :1]) / self.masses_H[rows, None]
        return TopTokens(self.top_ids_HK[rows, :num_top], shares_RK.astype(np.float32))


class Launched:
    """A plan's results while they are copied to the host."""

    def __init__(self, plan: Plan, results: torch.Tensor) -> None:
        self._plan = plan
        self._arrived = torch.cuda.Event() if results.is_cuda else None  # type: ignore[no-untyped-call]
        self._words = torch.empty_like(results, device="cpu", pin_memory=results.is_cuda)
        self._words.copy_(results, non_blocking=True)
        if self._arrived is not None:
            self._arrived.record()

    def wait(self) -> Results:
        """Wait for the results. This is the only wait of a step."""
        if self._arrived is not None:
            self._arrived.synchronize()
        return Results(self._plan, self._words.numpy())


class _Tables:
    """A plan's tables on the device, sent in one copy. Each begins at a multiple of 16 bytes, whatever is before it:
    kernels are compiled anew for addresses of another alignment."""

    def __init__(self, plan: Plan, device: torch.device) -> None:
        bits = np.concatenate([*plan.masks, np.zeros(plan.num_mask_words % 2, np.uint32)])  # whole int64
        tables = {
            "jobs": _joined(plan.jobs),
            "trees": _joined(plan.trees),
            "nodes": _joined(plan.nodes),
            "ranked": np.array(plan.ranked, np.int64),
            "scored": _joined(plan.scored),
            "edited": _joined(plan.edited),
            "changes": _joined(plan.changes),
            "changes_after": _joined(plan.changes_after),
            "entries": _joined(plan.entries),
            "masks": bits.view(np.int64),
        }
        tables = {name: np.append(words, np.zeros(len(words) % 2, np.int64)) for name, words in tables.items()}
        block = torch.from_numpy(np.concatenate(list(tables.values())))
        block = (block.pin_memory() if device.type == "cuda" else block).to(device, non_blocking=True)
        parts = block.split([len(words) for words in tables.values()])  # type: ignore[no-untyped-call]
        self._tables = dict(zip(tables, parts, strict=True))

    def words(self, name: str) -> torch.Tensor:
        """int64: one table."""
        return self._tables[name]

    def both(self, name: str) -> tuple[torch.Tensor, torch.Tensor]:
        """One table's memory, as int64 and as float64."""
        return self._tables[name], self._tables[name].view(torch.float64)

    def bits(self) -> torch.Tensor:
        """int32: the masks' bits."""
        return self._tables["masks"].view(torch.int32)


def _joined(records: Sequence[Any]) -> NDArray[np.int64]:
    return np.concatenate([np.ravel(record) for record in records]) if records else np.empty(0, np.int64)


def launch(
    plan: Plan, logits_RV: torch.Tensor, block_len: int = BLOCK, kernels: Kernels | None = None
) -> Launched:
    """Queue the kernels of a plan over these logits, float32 and contiguous. block_len: a power of two; kernels:
    Triton's."""
    kernels = kernels or triton_kernels()
    device, vocab_size = logits_RV.device, plan.vocab_size
    tables = _Tables(plan, device)
    num_blocks = -(-vocab_size // block_len)
    padded_blocks = _power_of_2(num_blocks)
    results = torch.empty(plan.num_results, dtype=torch.int32, device=device)
    values = results.view(torch.float32)
    bests_JC = torch.empty(plan.num_jobs, num_blocks, dtype=torch.int64, device=device)
    masses_JC2 = torch.empty(plan.num_jobs, num_blocks, 2, device=device)
    noisy_JC = torch.empty(plan.num_jobs, num_blocks, device=device)
    tops_JCK = torch.empty(plan.num_jobs, num_blocks, plan.num_top, dtype=torch.int64, device=device)
    drawn_N = torch.empty(plan.num_nodes, dtype=torch.int32, device=device)
    edited_EV = _edit(plan, tables, logits_RV, block_len, kernels)
    source = (logits_RV, edited_EV, *tables.both("jobs"))
    if plan.num_jobs:
        kernels.scan[(plan.num_jobs, num_blocks)](
            *source, bests_JC, masses_JC2, noisy_JC, tops_JCK, vocab_size, plan.num_top, block_len
        )
    if plan.trees:
        kernels.draw[(plan.num_nodes,)](
            *source, bests_JC, masses_JC2, noisy_JC, drawn_N, vocab_size, num_blocks, padded_blocks, block_len
        )  # fmt: skip
        most_nodes = max(FEWEST_NODES, _power_of_2(max(tree.num_nodes for tree in plan.trees)))
        kernels.walk[(len(plan.trees),)](tables.words("trees"), tables.words("nodes"), drawn_N, results, most_nodes)
    if plan.ranked:
        padded_places = _power_of_2(num_blocks * plan.num_top)
        kernels.rank[(len(plan.ranked),)](
            tables.words("ranked"), bests_JC, masses_JC2, tops_JCK, results, values, plan.first_ranked, num_blocks,
            plan.num_top, padded_blocks, padded_places,
        )  # fmt: skip
    if plan.scored:
        kernels.score[(len(plan.scored),)](
            tables.words("scored"), drawn_N, logits_RV, results, values, plan.first_scored, vocab_size, block_len
        )
    return Launched(plan, results)


def _power_of_2(number: int) -> int:
    """The next one."""
    return 1 << (number - 1).bit_length()


def likeliest(logits_RV: torch.Tensor, num_top: int) -> TopTokens:
    """`top_tokens`, computed on the logits' device."""
    plan = Plan(logits_RV.shape[1], found_top(num_top))
    plan.rank_rows(0, len(logits_RV))
    return launch(plan, logits_RV).wait().top(slice(None), min(num_top, plan.vocab_size))


def _edit(
    plan: Plan, tables: _Tables, logits_RV: torch.Tensor, block_len: int, kernels: Kernels
) -> torch.Tensor:
    """float32 [E, V]: copies of rows with the processors' changes."""
    vocab_size = plan.vocab_size
    edited_EV = logits_RV.new_empty(len(plan.edited), vocab_size)
    if plan.edited:
        grid = (len(plan.edited), -(-vocab_size // block_len))
        kernels.mask[grid](tables.words("edited"), tables.bits(), logits_RV, edited_EV, vocab_size, block_len)
    for name, changes in (("changes", plan.changes), ("changes_after", plan.changes_after)):
        if changes:
            lists = (*tables.both(name), *tables.both("entries"))
            # without fusion, product and difference are rounded separately, as on the host
            kernels.change[(len(changes),)](*lists, logits_RV, edited_EV, vocab_size, ENTRIES, enable_fp_fusion=False)
    return edited_EV
