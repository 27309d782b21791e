"""The benchmark of prompts by their length: what every engine is asked, and what the table says."""

from __future__ import annotations

import json
from contextlib import ExitStack
from typing import Any

import pytest

from decoding.bench import prompts as command
from decoding.bench.peers.gate import IdleGate
from decoding.bench.peers.loaded import LLAMA
from decoding.bench.peers.peer_process import PeerAnswer, PeerFailed, PeerTask
from decoding.bench.peers.rounds import OURS
from decoding.bench.prompts import Rates, measure, table


def test_all_engines_run_the_same_prompts_and_none_twice() -> None:
    seen: dict[str, list[tuple[int, ...]]] = {OURS: [], LLAMA: []}

    def engine(peer: str, rate: float) -> Any:
        def run(prompt: list[int]) -> float:
            seen[peer].append(tuple(prompt))
            return len(prompt) / rate

        return run

    engines = {OURS: engine(OURS, 300.0), LLAMA: engine(LLAMA, 100.0)}
    found = measure(engines, [5, 9], 3, IdleGate(0.0, goes_on=True, read=lambda: None, sleep=lambda _: None))
    assert seen[OURS][1:] == seen[LLAMA][1:]  # after the warm-up
    assert len(set(seen[OURS])) == len(seen[OURS]) == 1 + 3 * 2
    assert [(each.peer, each.num_tokens) for each in found] == [(OURS, 5), (LLAMA, 5), (OURS, 9), (LLAMA, 9)]
    assert all(each.rates == pytest.approx([rate] * 3) for each, rate in zip(found, [300, 100] * 2, strict=True))


def test_the_table_compares_within_rounds() -> None:
    found = [
        Rates(peer=OURS, num_tokens=600, rates=[200.0, 400.0, 300.0]),
        Rates(peer=LLAMA, num_tokens=600, rates=[100.0, 100.0, 100.0]),
        Rates(peer=OURS, num_tokens=9000, rates=[100.0, 200.0, 150.0]),
    ]
    assert table(found).rows == [("600", "300", "100", "3.00", "1.00"), ("9,000", "150", "–", "–", "0.50")]


class Loaded:
    def answer(self, task: PeerTask, _limit: float) -> PeerAnswer:
        assert task.max_tokens == 1
        return PeerAnswer(tokens=[3], seconds=1.0, first_seconds=0.5, cpu_seconds=1.0)


def test_the_command_prints_every_round(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    asked: list[object] = []

    def load(_stack: ExitStack, model: str, max_len: int, *_others: object) -> dict[str, Loaded]:
        asked.append((model, max_len))
        return {OURS: Loaded()}

    monkeypatch.setattr(command, "load_both", load)
    assert (
        command.main(["small.gguf", "--tokens", "100,50", "--rounds", "2", "--patience", "0", "--busy", "--json"]) == 0
    )
    assert json.loads(capsys.readouterr().out) == [
        {"peer": OURS, "num_tokens": 50, "rates": [100.0, 100.0]},
        {"peer": OURS, "num_tokens": 100, "rates": [200.0, 200.0]},
    ]
    assert asked == [("small.gguf", 101)]


def test_what_cannot_be_measured_is_said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def load(*_arguments: object) -> dict[str, Loaded]:
        raise PeerFailed("no such file")

    monkeypatch.setattr(command, "load_both", load)
    assert command.main(["missing.gguf"]) == 1
    assert "Not measured: no such file." in capsys.readouterr().err


@pytest.mark.parametrize("tokens", ["", "many", "600,0", "-5"])
def test_lengths_are_positive_numbers(tokens: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.main(["model.gguf", f"--tokens={tokens}"])
    assert "--tokens is positive numbers apart by commas" in capsys.readouterr().err
