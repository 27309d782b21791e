"""How much of a step each key may have."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from decoding.engine.sequence import Sequence
from decoding.engine.sharing.fair_queue import Turn
from decoding.engine.sharing.step_plan import LATELY, StepShares, Want, step_tokens


@dataclass
class Running:
    """What a step's shares look at."""

    key: str
    num_pending: int = 1
    weight: float = 1.0
    drafter: Any = field(default_factory=lambda: SimpleNamespace(nodes_wanted=0))

    @property
    def turn(self) -> Turn:
        return Turn(self.key, self.key, 0.0, self.weight)


def running(*each: Running) -> list[Sequence]:
    return cast("list[Sequence]", list(each))


@pytest.mark.parametrize("seed", range(20))
def test_no_key_waits_longer_for_a_step_than_on_a_machine_of_its_share(seed: int) -> None:
    rng = random.Random(seed)
    base, most = rng.uniform(0, 300), 512
    wants = {f"{key}": Want(rng.choice((1, 2, 60, 512)), rng.choice((1.0, 3.0))) for key in range(rng.randint(2, 8))}
    shares, total = step_tokens(wants, base, most), sum(want.weight for want in wants.values())
    rows = sum(shares.values())
    assert rows <= most + 1e-6
    for key, want in wants.items():
        due = total / want.weight
        assert 0 <= shares[key] <= want.rows
        assert base + rows <= (base + want.rows) * due + 1e-6
        assert shares[key] >= min(want.rows, rows / due) - 1e-6, "less than its share, though it wants more"


def test_keys_that_ask_for_little_leave_the_rest_to_one_that_can_use_it() -> None:
    many = {f"{key}": Want(1) for key in range(30)}
    assert step_tokens(many | {"flood": Want(60)}, 16, 512) == {**dict.fromkeys(many, 1), "flood": 60}
    assert step_tokens({"one": Want(1), "flood": Want(60)}, 16, 512) == {"one": 1, "flood": 17}
    assert step_tokens({"one": Want(400), "other": Want(400)}, 16, 512) == {"one": 256, "other": 256}


def test_a_key_alone_has_the_whole_step_and_one_that_left_a_moment_ago_still_has_its_part() -> None:
    shares, flood = StepShares(512), [Running("a") for _ in range(60)]
    assert shares.tokens_of_keys(running(*flood), 16, now=0.0) == {"a": 512}
    assert shares.tokens_of_keys(running(*flood, Running("b")), 16, now=1.0) == {"a": 17, "b": 1}
    assert shares.tokens_of_keys(running(*flood), 16, now=1.0 + LATELY / 2) == {"a": 17}
    assert shares.tokens_of_keys(running(*flood), 16, now=1.0 + LATELY) == {"a": 512}


def test_a_key_with_a_prompt_can_always_run_a_block_of_it() -> None:
    shares = StepShares(512)
    flood = [Running("a", num_pending=300), *(Running("a") for _ in range(40))]
    assert shares.tokens_of_keys(running(*flood, Running("b")), 3, now=0.0) == {"a": 17, "b": 1}
