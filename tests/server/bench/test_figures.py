"""From calls to figures, and from figures to tables."""

import pytest

from decoding.bench.tables.table import Table
from server.bench.call import Call
from server.bench.closed_loop import MemorySample, Run
from server.bench.figures import Figures, by_turn, quantile
from server.bench.late_prompt import LatePrompt, rate_between, split_gaps
from server.bench.report import late_prompt_table, load_table, memory_table, turns_table
from tests.server.bench.streams import answered

MIB = 2**20


def figures(label: str, *calls: Call, seconds: float = 2.0, clients: int = 1) -> Figures:
    memory = [MemorySample(0, 100 * MIB), MemorySample(len(calls), 120 * MIB)]
    return Figures(label, clients, [Run(calls, seconds, memory)])


def cached(call: Call, cached_tokens: int) -> Call:
    call.cached_tokens = cached_tokens
    return call


def test_quantiles_lie_between_the_nearest_values() -> None:
    values = [4.0, 1.0, 3.0, 2.0]
    assert (quantile(values, 0.5), quantile(values, 1.0), quantile([], 0.5)) == (2.5, 4.0, None)


def test_failed_calls_are_counted_and_nothing_else() -> None:
    failed = Call(number=1, times=[9.0], completion_tokens=1000, error="status 500")
    row = figures("a", answered([1.0, 2.0], tokens=5), failed)
    assert row.errors == ["status 500"]
    assert (row.tokens_per_second, row.requests_per_second) == (2.5, 0.5)
    assert row.times_to_first_token == [1.0]


def test_the_cached_share_is_of_prompt_tokens_where_the_server_says_it() -> None:
    assert figures("a", answered([1.0], 1)).cached_share is None
    calls = (cached(answered([1.0], 1), 5), cached(answered([1.0], 1), 0), answered([1.0], 1))
    assert figures("a", *calls).cached_share == 5 / 20


def test_a_ratio_is_the_median_over_rounds_not_the_ratio_of_sums() -> None:
    def runs(*rates: float) -> list[Run]:
        return [Run([answered([1.0], tokens=100)], 100 / rate, []) for rate in rates]

    slow, quick = Figures("slow", 1, runs(10, 10, 1)), Figures("quick", 1, runs(20, 20, 20))
    assert quick.ratio_to(slow) == pytest.approx(2.0)


def test_turns_tell_how_much_of_a_prompt_was_computed() -> None:
    calls = [cached(answered([1.0], 1, turn=1), 0), cached(answered([3.0], 1, turn=2), 8)]
    first, second = by_turn(calls)
    assert (first.turn, first.cached_tokens, second.cached_tokens) == (1, 0, 8)
    assert second.times_to_first_token == [3.0]
    assert turns_table([figures("a", *calls)]).rows[1] == ("a", "1", "2", "10", "8", "2", "3000 / 3000 / 3000")


def test_one_server_has_a_row_for_each_number_of_clients() -> None:
    row = figures("a", answered([0.004, 0.012], tokens=5))
    table = load_table([row, figures("a", clients=8)])
    assert table.rows[0] == (
        "a", "1", "1", "0.5", "2", "4.0 / 4.0 / 4.0", "2.0 / 2.0 / 2.0", "8.0", "–", "100 to 120",
    )  # fmt: skip
    assert table.rows[1][5] == "– / – / –"
    assert "× first" not in table.head


def test_several_servers_are_compared_with_the_first() -> None:
    one = figures("a", answered([1.0], 10, content="x"), answered([1.0], 10, number=1, content="y"))
    other = figures("b", answered([1.0], 10, content="x"), answered([1.0], 10, number=1, content="z"), seconds=4.0)
    table = load_table([one, other])
    assert [dict(zip(table.head, row, strict=True))["× first"] for row in table.rows] == ["1.00", "0.50"]
    assert [dict(zip(table.head, row, strict=True))["same replies"] for row in table.rows] == ["2 of 2", "1 of 2"]


def test_memory_has_a_row_for_each_sample() -> None:
    assert [row[2:] for row in memory_table([figures("a", answered([1.0], 1))]).rows] == [("0", "100"), ("1", "120")]


def test_gaps_are_split_by_what_the_late_prompt_can_have_delayed() -> None:
    streams = [[0.0, 1.0, 2.5, 4.5, 5.0], [0.5, 2.0, 3.5, 4.5], [9.0]]
    before, during = split_gaps(streams, begin=2.0, end=4.0)
    assert before == [1.0, 1.5]
    assert during == [1.5, 2.0, 1.5, 1.0]
    row = late_prompt_table([("a", 3, 1900, [LatePrompt(2.0, 0.5, before, during, 40.0, 30.0)])]).rows[0]
    gaps = ("1250 / 1495 / 1500", "1500 / 1985 / 2000")
    assert row == ("a", "3", "1900", "2000 / 2000", "500 / 500", *gaps, "0.75")
    row = late_prompt_table([("a", 3, 1900, [LatePrompt(2.0, None, [], during, 40.0, 0.0)])]).rows[0]
    assert (row[4], row[-1]) == ("– / –", "0.00")


def test_streams_have_the_rate_of_what_they_brought_not_of_how_often() -> None:
    events = [(0.0, 5), (1.0, 4), (2.0, 4), (3.0, 8), (4.0, 8)]
    assert rate_between(events, 0.0, 2.0) == 4.0
    assert rate_between(events, 2.0, 4.0) == 8.0


def test_markdown_has_a_line_for_each_row() -> None:
    assert Table(("a", "b"), [("x", "1")]).markdown() == "| a | b |\n| --- | --: |\n| x | 1 |"
