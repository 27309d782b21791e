"""The benchmark beside busy processes: what it starts, how it tells that the full rate is back, and what it demands."""

from __future__ import annotations

import json
from pathlib import Path
from typing import ClassVar

import pytest

from decoding.bench import neighbours as command
from decoding.bench.neighbours import (
    PATIENCE,
    REPLY_LEN,
    Beside,
    Measurement,
    missed,
    neighbours,
    rate,
    rate_over,
    seconds_until,
    table,
)
from decoding.bench.peers import loaded
from decoding.bench.peers.gate import IdleGate
from decoding.bench.peers.peer_process import PeerAnswer, PeerFailed, PeerOptions


class Engine:
    """Answers at scripted rates, the last of which stays, on a clock of its own."""

    def __init__(self, *rates: float) -> None:
        self.rates = list(rates)
        self.now = 0.0

    def ask(self, num_tokens: int) -> PeerAnswer:
        found = self.rates.pop(0) if len(self.rates) > 1 else self.rates[0]
        seconds = 0.5 + (num_tokens - 1) / found
        self.now += seconds
        return PeerAnswer(tokens=[3] * num_tokens, seconds=seconds, first_seconds=0.5, cpu_seconds=0.0)

    def clock(self) -> float:
        return self.now


def never_busy() -> IdleGate:
    return IdleGate(0.0, goes_on=True, read=lambda: None, sleep=lambda _: None)


def children() -> set[int]:
    """Processes of ours that run now."""
    return {int(each) for task in Path("/proc/self/task").iterdir() for each in (task / "children").read_text().split()}


def test_a_rate_is_tokens_after_the_first_over_the_seconds_after_it() -> None:
    engine = Engine(10.0, 30.0)
    assert rate([engine.ask(11)]) == pytest.approx(10)
    assert rate_over(engine.ask, 4.0, engine.clock) == pytest.approx(30)
    assert engine.now > 4.0


def test_the_full_rate_is_back_where_the_first_reply_that_has_it_begins() -> None:
    engine = Engine(10.0, 10.0, 40.0)
    assert seconds_until(36.0, engine.ask, engine.clock) == pytest.approx(2 * (0.5 + 0.7))
    assert seconds_until(36.0, engine.ask, engine.clock) == 0.0
    engine = Engine(10.0)
    assert seconds_until(36.0, engine.ask, engine.clock) is None
    assert PATIENCE <= engine.now < PATIENCE + 2


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="it counts processes in /proc")
def test_neighbours_run_while_they_are_wanted_and_end_even_after_an_error() -> None:
    before = children()
    with neighbours(2):
        assert len(children() - before) == 2
    assert children() == before
    with pytest.raises(ZeroDivisionError), neighbours(1):
        raise ZeroDivisionError
    assert children() == before


def test_each_engine_is_measured_alone_then_beside_each_number_of_neighbours() -> None:
    ours, other = Engine(1.0, 40.0, 30.0, 38.0, 20.0, 10.0, 37.0), Engine(1.0, 20.0, 5.0, 20.0, 2.0, 20.0)
    measurement = Measurement({"gander": ours.ask, "llama.cpp": other.ask}, (1, 2), 0.0, never_busy())
    measurement.round(0)
    found = measurement.found
    assert [found["gander", count].shares for count in (1, 2)] == [[pytest.approx(0.75)], [pytest.approx(0.5)]]
    assert [found["llama.cpp", count].rates for count in (0, 1, 2)] == [[pytest.approx(each)] for each in (20, 5, 2)]
    assert found["gander", 0].shares == found["gander", 0].back == []
    assert len(found["gander", 1].back) == 1
    lines = table(list(found.values())).markdown().splitlines()
    assert lines[2] == "| gander | 0 | 40.0 | – | – |"
    assert lines[3].startswith("| gander | 1 | 30.0 | 0.75 | 0.0 (at most 0.0) |")


def figures(share: float, back: list[float | None]) -> list[Beside]:
    return [
        Beside(peer="gander", busy=0, rates=[40.0]),
        Beside(peer="gander", busy=1, rates=[40 * share], shares=[share], back=back),
        Beside(peer="llama.cpp", busy=1, rates=[1.0], shares=[0.1], back=[None]),
    ]


def test_what_our_engine_was_to_reach_and_did_not_is_told() -> None:
    assert missed(figures(0.7, [0.5, 1.0, 9.0]), {1: 0.6}, 2.0) == []
    assert missed(figures(0.5, [0.5]), {1: 0.6}, 2.0) == ["beside 1: 0.50 of the quiet rate, not 0.6"]
    assert missed(figures(0.7, [None]), {1: 0.6}, 2.0) == ["beside 1: the full rate was back after 30.0 s, not 2"]
    assert missed(figures(0.1, [None]), {}, None) == []


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [(("--busy", "0"), "--busy is positive numbers"), (("--least", "0.6,0.5,0.4"), "--least has 3 shares for 2")],
)
def test_options_that_make_no_sense_are_refused(
    flags: tuple[str, ...], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        command.main(["model.gguf", *flags])
    assert sentence in capsys.readouterr().err


class Process:
    """Stands for an engine's process."""

    started: ClassVar[list[PeerOptions]] = []

    def __init__(self, adapter: Path, _interpreter: str, options: PeerOptions) -> None:
        if adapter.name == "llama_cpp_peer.py":
            raise PeerFailed("No module named 'llama_cpp'")
        self.started.append(options)
        self.answer = lambda task: Engine(40.0).ask(task.max_tokens)

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_raised: object) -> None:
        pass


def test_the_command_prints_json_and_says_who_is_left_out(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loaded, "PeerProcess", Process)
    monkeypatch.setattr(command, "IdleGate", lambda *_given, **_named: never_busy())
    flags = ["--rounds", "2", "--seconds", "0", "--busy", "1", "--json", "--least", "0.9", "--latest", "2"]
    assert command.main(["small.gguf", *flags]) == 0
    out, err = capsys.readouterr()
    alone, beside = json.loads(out)
    assert alone["rates"] == [pytest.approx(40)] * 2
    assert beside["shares"] == [pytest.approx(1)] * 2
    assert "llama.cpp is left out: No module named 'llama_cpp'" in err
    assert Process.started[-1].threads is None
    assert Process.started[-1].max_len > REPLY_LEN
