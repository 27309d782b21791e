"""The largest batch whose rows stay bit-identical to a small batch's; larger calls are split.

Processors with AMX round a few bfloat16 numbers differently above some number of rows.
Knows nothing of models. Invariant: a split never leaves a call with a single row.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

# Shape suffixes: M rows, I input width, O output width.
MIN_EXACT_ROWS = 2  # oneDNN runs a single row with another kernel at some widths, in both dtypes
FEW_ROWS = 16  # other numbers of rows are compared with this one
FEWER_ROWS, MORE_ROWS = (2, 3, 5, 7), (32, 33, 48, 64, 128, 256, 512)  # oneDNN is known to change kernels at these
NUMBERS = 1 << 18  # compared for each number of rows: another order of sums changes one bfloat16 number in ten thousand
MOST_CALLS = 8  # for each number of rows
# After so many multiply-adds (a tenth of a second on two cores) a wide layer counts as having no limit.
PROBE_WORK = 1 << 35
Kernel = Callable[[torch.Tensor], torch.Tensor]  # [M, I] to [M, O]


def exact_row_limit(kernel: Kernel, in_features: int, out_features: int, dtype: torch.dtype) -> int | None:
    """The most rows, of the numbers tried, with which every row has the same bits as in a call with few rows.

    None if no call differed: there is no limit. 0 if calls with fewer rows differed: none would help.
    """
    num_compared = min(-(-NUMBERS // out_features), MORE_ROWS[-1])
    num_distinct = -(-num_compared // FEW_ROWS) * FEW_ROWS
    rows_MI = torch.randn(num_distinct, in_features, generator=torch.Generator().manual_seed(0)).to(dtype)
    few_MO = torch.cat([kernel(few_MI) for few_MI in torch.split(rows_MI, FEW_ROWS)])

    def are_same(num_rows: int) -> bool:
        for start in range(0, min(num_compared, MOST_CALLS * num_rows), num_rows):
            places_M = torch.arange(start, start + num_rows) % num_distinct
            if not torch.equal(kernel(rows_MI[places_M]), few_MO[places_M]):
                return False
        return True

    if not all(are_same(num_rows) for num_rows in FEWER_ROWS):
        return 0
    limit, work = FEW_ROWS, 0
    for num_rows in MORE_ROWS:
        work += max(num_rows, num_compared) * in_features * out_features
        if work > PROBE_WORK:
            return None
        if not are_same(num_rows):
            return limit
        limit = num_rows
    return None


def run_in_pieces(kernel: Kernel, input: torch.Tensor, limit: int) -> torch.Tensor:
    """Run `kernel` on [..., I] with more than `limit` rows in calls of at most `limit` rows; [..., O]."""
    rows_MI = input.reshape(-1, input.shape[-1])
    out_MO = torch.cat([kernel(piece_MI) for piece_MI in torch.split(rows_MI, piece_sizes(len(rows_MI), limit))])
    return out_MO.view(*input.shape[:-1], -1)


def piece_sizes(num_rows: int, limit: int) -> list[int]:
    """Split `num_rows` > `limit` into pieces of `MIN_EXACT_ROWS` to `limit` rows, nearly all of `limit`."""
    assert num_rows > limit > MIN_EXACT_ROWS, (num_rows, limit)
    num_full, rest = divmod(num_rows, limit)
    if rest == 0:
        return [limit] * num_full
    lacking = max(0, MIN_EXACT_ROWS - rest)
    return [limit] * (num_full - 1) + [limit - lacking, rest + lacking]
