"""The tables of a benchmark, for the console and as Markdown. Pure.

Owns columns and units: milliseconds, MiB, percent. An unknown value is a dash.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean

from decoding.bench.tables.table import UNKNOWN, Table
from server.bench.figures import Figures, by_turn, quantile
from server.bench.late_prompt import LatePrompt

QUANTILES = (0.5, 0.9, 0.99)
ITL_QUANTILE = 0.99
GAP_QUANTILES = (0.5, 0.99, 1.0)
TTFT = "TTFT ms p50 / p90 / p99"
LATENCIES = (TTFT, "TPOT ms p50 / p90 / p99", "ITL ms p99", "cached prompt tokens", "resident MiB")


def load_table(rows: Sequence[Figures]) -> Table:
    """A row for each server and number of clients. Several servers are compared with the first at the same number of
    clients."""
    first = {row.clients: row for row in reversed(rows)}
    is_comparison = len(first) < len(rows)
    compared = ("× first", "same replies") if is_comparison else ()
    head = ("server", "clients", "requests", "requests/s", "tokens/s", *compared, *LATENCIES)
    cells = []
    for row in rows:
        other = first[row.clients]
        same = f"{row.num_same_replies(other)} of {len(row.calls)}"
        cells.append(
            (
                row.label,
                str(row.clients),
                str(len(row.calls)),
                f"{row.requests_per_second:.1f}",
                f"{row.tokens_per_second:.0f}",
                *((f"{row.ratio_to(other):.2f}", same) if is_comparison else ()),
                _quantiles(row.times_to_first_token, QUANTILES),
                _quantiles(row.times_per_output_token, QUANTILES),
                _quantiles(row.gaps, (ITL_QUANTILE,)),
                UNKNOWN if row.cached_share is None else f"{row.cached_share:.0%}",
                f"{_mebibytes(row.runs[0].memory[0].resident_bytes)} to "
                f"{_mebibytes(row.runs[-1].memory[-1].resident_bytes)}",
            )
        )
    return Table(head, cells)


def turns_table(rows: Sequence[Figures]) -> Table:
    """A row for each server, number of clients and turn. computed: prompt tokens that the cache did not have."""
    cells = []
    for row in rows:
        for turn in by_turn(row.calls):
            cached = turn.cached_tokens
            cells.append(
                (
                    row.label,
                    str(row.clients),
                    str(turn.turn),
                    f"{turn.prompt_tokens:.0f}",
                    UNKNOWN if cached is None else f"{cached:.0f}",
                    UNKNOWN if cached is None else f"{turn.prompt_tokens - cached:.0f}",
                    _quantiles(turn.times_to_first_token, QUANTILES),
                )
            )
    return Table(("server", "clients", "turn", "prompt tokens", "cached", "computed", "TTFT ms p50 / p90 / p99"), cells)


def memory_table(rows: Sequence[Figures]) -> Table:
    """A row for each sample of a server's memory."""
    cells = [
        (row.label, str(row.clients), str(sample.num_calls), _mebibytes(sample.resident_bytes))
        for row in rows
        for run in row.runs
        for sample in run.memory
    ]
    return Table(("server", "clients", "after requests", "resident MiB"), cells)


def late_prompt_table(rows: Sequence[tuple[str, int, int, Sequence[LatePrompt]]]) -> Table:
    """A row for each of `rows`: server, streams, prompt tokens, and a result for each round. Gaps are pooled; the
    streams' rate is of their characters."""
    gaps_head = ("gaps before ms p50 / p99 / max", "gaps during ms p50 / p99 / max")
    firsts_head = ("its TTFT ms p50 / max", "a short prompt's meanwhile")
    head = ("server", "streams", "late prompt tokens", *firsts_head, *gaps_head, "streams' rate during, of alone")
    cells = []
    for label, streams, prompt_tokens, found in rows:
        before = [gap for one in found for gap in one.gaps_before]
        during = [gap for one in found for gap in one.gaps_during]
        first = _quantiles([one.time_to_first_token for one in found], (0.5, 1.0))
        shorts = [one.short_time_to_first_token for one in found if one.short_time_to_first_token is not None]
        gaps = (_quantiles(before, GAP_QUANTILES), _quantiles(during, GAP_QUANTILES))
        kept = f"{mean(one.rate_during for one in found) / mean(one.rate_alone for one in found):.2f}"
        cells.append((label, str(streams), str(prompt_tokens), first, _quantiles(shorts, (0.5, 1.0)), *gaps, kept))
    return Table(head, cells)


def _quantiles(seconds: Sequence[float], shares: Sequence[float]) -> str:
    """Quantiles in milliseconds, separated by slashes."""
    found = [quantile(seconds, share) for share in shares]
    return " / ".join(UNKNOWN if value is None else _milliseconds(value) for value in found)


def _milliseconds(seconds: float) -> str:
    """Milliseconds, below 10 with one decimal."""
    return f"{1000 * seconds:.1f}" if seconds < 0.01 else f"{1000 * seconds:.0f}"


def _mebibytes(num_bytes: int | None) -> str:
    return UNKNOWN if num_bytes is None else f"{num_bytes / 2**20:.0f}"
