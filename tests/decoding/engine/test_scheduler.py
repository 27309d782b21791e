"""The plan of a step, without a model: scripted costs, and drafters that want nothing."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from decoding.cache.block_pool import BLOCK_LEN, BlockPool
from decoding.cache.prefix_index import PrefixIndex
from decoding.core.picture import Span
from decoding.core.request import Request
from decoding.core.sampling_params import SamplingParams
from decoding.core.speculation_params import SpeculationParams
from decoding.costs.price import CostCurve, Curves
from decoding.costs.pricing import Pricing
from decoding.drafting.sequence_drafter import SequenceDrafter
from decoding.engine.limits import Limits
from decoding.engine.scheduler import Scheduler
from decoding.engine.sequence import Sequence

LIMITS = Limits(
    max_running=32, max_batch_rows=256, max_waiting=100, max_step_seconds=0.1, max_prompt_logits=256, max_tree_tokens=64
)


def sequence_of(
    name: str, key: str, prompt_len: int, num_resumed: int = 0, joint: tuple[Span, ...] = (), scores: bool = False
) -> Sequence:
    prompt = np.random.default_rng(prompt_len).integers(3, 300, prompt_len).astype(np.int32)
    request = Request(
        id=name,
        prompt=prompt,
        sampling=SamplingParams(max_tokens=5000, prompt_logprobs=0 if scores else None),
        speculation=SpeculationParams(method="none"),
        tenant=key,
        resumed=np.arange(num_resumed, dtype=np.int32),
    )
    drafter = SimpleNamespace(reads_ahead=False, nodes_wanted=0, forget_rows=lambda: None)
    return Sequence(request=request, drafter=cast(SequenceDrafter, drafter), joint=joint)


def run(scheduler: Scheduler) -> dict[str, int]:
    """A step whose trees are roots: how many tokens each sequence brought to it."""
    steps = scheduler.next_steps()
    for step in steps:
        assert step.sequence.rows is not None
        step.sequence.rows.length += step.num_tokens
        if step.tree is not None:
            step.sequence.request.extend(np.array([5], np.int32))
    return {step.sequence.request.id: step.num_tokens for step in steps}


def test_a_key_whose_first_prompt_takes_all_of_its_share_brings_no_other() -> None:
    """Beside another key it has a block a step, which takes longer than prompts may delay those that decode."""
    pricing = Pricing(64, Curves(CostCurve(base=0.080, token=0.006, key=1e-7)))
    scheduler = Scheduler(LIMITS, BlockPool(4096, PrefixIndex()), pricing)
    scheduler.add(sequence_of("a decodes", "a", 1))
    scheduler.add(sequence_of("b decodes", "b", 1))
    run(scheduler)
    scheduler.add(sequence_of("a reads", "a", 400))
    scheduler.add(sequence_of("a reads too", "a", 401))
    plans = [run(scheduler) for _ in range(5)]
    assert {"a decodes": 1, "b decodes": 1, "a reads": BLOCK_LEN} in plans
    assert not any("a reads too" in plan for plan in plans)


def test_of_a_resumed_request_no_more_of_the_prompt_is_found_than_it_has() -> None:
    pricing = Pricing(64, Curves(CostCurve(base=0.080, token=0.006, key=1e-7)))
    scheduler = Scheduler(LIMITS, BlockPool(4096, PrefixIndex()), pricing)
    scheduler.add(sequence_of("before", "a", 20, num_resumed=45))
    assert run(scheduler) == {"before": 65}
    again = sequence_of("again", "a", 20, num_resumed=45)
    scheduler.add(again)
    assert run(scheduler) == {"before": 1, "again": 1}
    assert (scheduler.reuse.queries, scheduler.reuse.hits, again.stats.cached_tokens) == (20, 20, 20)


@pytest.mark.parametrize("slower", [1.0, 5.0])
def test_a_long_prompt_leaves_half_of_the_time_to_those_that_decode_and_a_short_one_passes_it(slower: float) -> None:
    """Also where reading is slower than it is expected to be."""
    curve = CostCurve(base=0.030, token=0.004, key=1e-6)
    scheduler = Scheduler(LIMITS, BlockPool(4096, PrefixIndex()), Pricing(64, Curves(curve)))
    scheduler.add(sequence_of("decodes", "a", 1))
    run(scheduler)
    scheduler.add(sequence_of("long", "a", 18_000))
    reading, alone, committed = 0.0, 0.0, 0
    for number in range(4000):
        if number == 2000:
            scheduler.add(sequence_of("short", "a", 12))
        sizes = run(scheduler)
        size = sizes.get("long", 0)
        chain = slower * (curve.token * size + curve.key * size * (committed + size / 2))
        committed += size
        reading, alone = reading + chain, alone + curve.step_seconds([1], [number])
        scheduler.note_step(chain + curve.step_seconds([1], [number]))
        assert sizes["decodes"] == 1
        if number == 2000:
            assert sizes["short"] == 12
        if number == 100:
            assert committed > 0
    assert 0.9 * alone < reading < 1.1 * alone
    for name in ("decodes", "short"):
        scheduler.retire(name)
    assert run(scheduler)["long"] > 200, "nobody waits for it"
    scheduler.note_step(1.0)
    assert run(scheduler)["long"] > 200


@pytest.mark.parametrize("scores", [False, True])
def test_a_picture_that_is_read_in_one_step_finds_room_there(scores: bool) -> None:
    """Whatever other keys have to read, and however many decode. Those others come before, by what they want."""
    limits = Limits(8, 64, 100, 0.1, max_prompt_logits=100, max_tree_tokens=64, joint_len=100)
    pricing = Pricing(64, Curves(CostCurve(base=0.080, token=0.0001, key=1e-9)))
    scheduler = Scheduler(limits, BlockPool(4096, PrefixIndex()), pricing)
    for number in range(5):
        scheduler.add(sequence_of(f"decodes {number}", "other", 1))
    run(scheduler)
    scheduler.add(sequence_of("sees", "own", 130, joint=(Span(20, 100),), scores=scores))
    scheduler.add(sequence_of("reads", "own", 900, scores=scores))
    scheduler.add(sequence_of("reads as well", "other", 400, scores=scores))
    plans = [run(scheduler) for _ in range(12)]
    assert {"sees": 100} in [{name: size for name, size in plan.items() if name == "sees"} for plan in plans]
    assert limits.most_rows == 108
    assert all(sum(plan.values()) <= limits.most_rows for plan in plans)
    assert all(len([size for size in plan.values() if size == 1]) >= 5 for plan in plans), "nobody waits for it"
