"""Runs every contestant on one workload at one temperature, in interleaved rounds.

In a round every contestant answers the same prompt once, in a new random order, so that a slow minute of the machine
affects all of them. Invariant: each of our variants gave the tokens of `none`, or is named in `differing`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random

import msgspec
import numpy as np

from decoding.bench.contestant import Contestant, EngineContestant, Reply, Task
from decoding.bench.generate import LOOKUP_TOKENS, GenerateContestant
from decoding.bench.tables.figures import Figures, pool, same_tokens
from decoding.bench.variant import NONE, Variant
from decoding.bench.workload import Workload
from decoding.engine.engine import Engine

AGAIN = "none, again"
WARM_UP_TOKENS = 16


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of every contestant, `none` first. differing: our variants that did not give the tokens of `none`.

    generate_same: the number of prompts for which greedy `generate` gave our tokens; None when sampled, since it draws
    other noise.
    """

    workload: str
    temperature: float
    prompts: int
    prompt_tokens: int
    figures: list[Figures]
    differing: list[str]
    generate_same: int | None

    def find(self, label: str, budget: int | None = None) -> Figures | None:
        """The figures of the row with this label and budget, if it was run."""
        return next((row for row in self.figures if (row.label, row.budget) == (label, budget)), None)

    def find_label(self, label: str) -> Figures | None:
        """The figures of the row with this label, if it was run."""
        return next((row for row in self.figures if row.label == label), None)

    @property
    def none(self) -> Figures:
        return self.figures[0]


def contestants_of(
    engine: Engine, stock_model: object | None, variants: Sequence[Variant], is_cold: bool
) -> list[Contestant]:
    """Our engine in every variant, `none` a second time to show the noise, then `generate` if its model is given."""
    assert variants[0].label == NONE, variants[0]
    again = replace(variants[0], label=AGAIN)
    found: list[Contestant] = [
        EngineContestant(engine, variant.label, variant.speculation, is_cold) for variant in (*variants, again)
    ]
    if stock_model is not None:
        threads = engine.model.threads
        found += [GenerateContestant(stock_model, threads), GenerateContestant(stock_model, threads, LOOKUP_TOKENS)]
    return found


def compare(
    workload: Workload,
    temperature: float,
    contestants: Sequence[Contestant],
    on_answer: Callable[[], None] = lambda: None,
) -> Comparison:
    """Run all rounds. Each contestant's session starts empty and lasts for the whole workload, like one user's."""
    _warm_up(workload, temperature, contestants)
    replies: dict[int, list[Reply]] = {place: [] for place in range(len(contestants))}
    for number, prompt in enumerate(workload.prompts):
        task = Task(
            prompt=prompt,
            max_tokens=workload.max_tokens,
            temperature=temperature,
            seed=number,
            ignore_eos=workload.ignore_eos,
        )
        order = list(replies)
        Random(number).shuffle(order)
        for place in order:
            replies[place].append(contestants[place].answer(task))
            on_answer()
    return _conclude(workload, temperature, [(contestants[place], replies[place]) for place in replies])


def _warm_up(workload: Workload, temperature: float, contestants: Sequence[Contestant]) -> None:
    task = Task(prompt=workload.prompts[0], max_tokens=WARM_UP_TOKENS, temperature=temperature, seed=0)
    for contestant in contestants:
        contestant.answer(task)
        if isinstance(contestant, EngineContestant):
            contestant.forget()


def _conclude(workload: Workload, temperature: float, answered: Sequence[tuple[Contestant, list[Reply]]]) -> Comparison:
    expected = answered[0][1]
    differing = [
        f"{contestant.label} at {contestant.budget}"
        for contestant, replies in answered
        if contestant.is_ours and not same_tokens(replies, expected)
    ]
    generated = next((replies for contestant, replies in answered if not contestant.is_ours), None)
    generate_same = None
    if generated is not None and temperature == 0:
        pairs = zip(generated, expected, strict=True)
        generate_same = sum(np.array_equal(reply.tokens, ours.tokens) for reply, ours in pairs)
    return Comparison(
        workload=workload.name,
        temperature=temperature,
        prompts=len(workload.prompts),
        prompt_tokens=sum(map(len, workload.prompts)),
        figures=[pool(contestant.label, contestant.budget, replies) for contestant, replies in answered],
        differing=differing,
        generate_same=generate_same,
    )
