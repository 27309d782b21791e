"""Measures each way of drafting of each peer over the same prompts, in interleaved rounds.

In a round all answer the same prompt once, in a new random order, each when the machine is idle. Knows nothing of the
peers themselves. Invariant: a row has one answer for each prompt, or is left out with the reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from statistics import median

import msgspec

from decoding.bench.peers.gate import IdleGate
from decoding.bench.peers.peer_process import PeerAnswer, PeerFailed, PeerProcess, PeerTask

OURS = "gander"
PLAIN = "plain"
WARM_UP_TOKENS = 8


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """The tasks of all peers. end_tokens: empty if every reply must have `max_tokens` tokens."""

    prompts: list[list[int]]
    max_tokens: int
    end_tokens: list[int]

    def task(self, number: int, drafting: str) -> PeerTask:
        return PeerTask(
            prompt=self.prompts[number], max_tokens=self.max_tokens, end_tokens=self.end_tokens, drafting=drafting
        )

    def warm_up(self, drafting: str) -> PeerTask:
        """A task for warming up, with a prompt like the others but equal to none."""
        return PeerTask(prompt=self.prompts[0][::-1], max_tokens=WARM_UP_TOKENS, end_tokens=[], drafting=drafting)


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One peer with one way of drafting. answers: in the order of the prompts."""

    peer: str
    version: str
    drafting: str
    prompt_lens: list[int]
    answers: list[PeerAnswer]

    @property
    def prefill_rates(self) -> list[float]:
        """For each round: prompt tokens over the seconds up to the first token."""
        pairs = zip(self.prompt_lens, self.answers, strict=True)
        return [prompt_len / answer.first_seconds for prompt_len, answer in pairs]

    @property
    def decode_rates(self) -> list[float]:
        """For each round: tokens after the first over the seconds after it."""
        return [(len(answer.tokens) - 1) / (answer.seconds - answer.first_seconds) for answer in self.answers]

    @property
    def whole_rates(self) -> list[float]:
        """For each round: tokens over all seconds, prefill included."""
        return [len(answer.tokens) / answer.seconds for answer in self.answers]


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """All rows of one kind of weights or of one workload. left_out: sentences that say who is missing and why. others:
    for each answer, the share of all processors that other processes took meanwhile."""

    name: str
    rows: list[Row]
    left_out: list[str]
    others: list[float]

    def find(self, peer: str, drafting: str = PLAIN) -> Row | None:
        return next((row for row in self.rows if (row.peer, row.drafting) == (peer, drafting)), None)


def ratio(mine: Sequence[float], theirs: Sequence[float]) -> float:
    """The median over rounds of the ratio of both rates in the same round."""
    return median(one / other for one, other in zip(mine, theirs, strict=True))


def agreement(row: Row, expected: Row) -> float:
    """The mean share of a reply before its first token that differs from the expected reply."""
    shares = []
    for answer, other in zip(row.answers, expected.answers, strict=True):
        pairs = zip(answer.tokens, other.tokens, strict=False)
        num_same = next((place for place, (one, two) in enumerate(pairs) if one != two), None)
        longest = max(len(answer.tokens), len(other.tokens))
        shares.append((min(len(answer.tokens), len(other.tokens)) if num_same is None else num_same) / longest)
    return sum(shares) / len(shares)


class Rounds:
    """Measures one setting: peers that have loaded, each with the ways of drafting to compare."""

    def __init__(self, gate: IdleGate, ask: Ask) -> None:
        self._gate = gate
        self._ask = ask
        self._others: list[float] = []

    def measure(self, name: str, peers: dict[str, PeerProcess], plain_only: bool, left_out: Sequence[str]) -> Setting:
        """Run all rounds. Raises MachineBusy from the gate."""
        failures: dict[tuple[str, str], str] = {}
        answers: dict[tuple[str, str], dict[int, PeerAnswer]] = {
            (peer, drafting): {}
            for peer, process in peers.items()
            for drafting in process.hello.draftings
            if drafting == PLAIN or not plain_only
        }
        for number in range(-1, len(self._ask.prompts)):  # the first round is a warm-up
            order = list(answers)
            Random(number).shuffle(order)
            for peer, drafting in order:
                if (peer, drafting) in failures:
                    continue
                try:
                    answer = self._answer(peers[peer], number, drafting)
                except PeerFailed as error:
                    failures[peer, drafting] = f"{peer}, {drafting}, is left out: {error}"
                    continue
                if number >= 0:
                    answers[peer, drafting][number] = answer
        rows = [
            self._row(peer, peers[peer].hello.version, drafting, list(given.values()))
            for (peer, drafting), given in answers.items()
            if (peer, drafting) not in failures
        ]
        return Setting(name=name, rows=rows, left_out=[*left_out, *failures.values()], others=self._others)

    def _answer(self, process: PeerProcess, number: int, drafting: str) -> PeerAnswer:
        if number < 0:
            return process.answer(self._ask.warm_up(drafting))
        self._gate.wait()
        before = self._gate.read()
        answer = process.answer(self._ask.task(number, drafting))
        others = self._gate.others_since(before, answer.cpu_seconds)
        if others is not None:
            self._others.append(others)
        return answer

    def _row(self, peer: str, version: str, drafting: str, answers: list[PeerAnswer]) -> Row:
        lens = [len(prompt) for prompt in self._ask.prompts]
        return Row(peer=peer, version=version, drafting=drafting, prompt_lens=lens, answers=answers)
