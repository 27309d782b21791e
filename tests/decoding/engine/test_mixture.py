"""A model with experts in an engine: the same replies however they come about, and prices that know its experts."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from decoding.cache.block_pool import BLOCK_LEN
from decoding.engine.engine import Engine
from decoding.engine.start import start_engine
from decoding.model.kept_timings import KeptTimings
from decoding.model.target_model import TargetModel
from tests.decoding.engine.test_preemption import again, finish, requests_of
from tests.pairs import CONFIG, draft_of, target_of

FOLDER = TemporaryDirectory()
KEPT = KeptTimings(Path(FOLDER.name))  # so that the second engine times nothing again


@cache
def models() -> tuple[TargetModel, TargetModel]:
    """What both engines run."""
    return target_of("qwen3_moe"), draft_of("qwen3_moe")


def engine_of(num_slots: int, **options: object) -> Engine:
    config = replace(CONFIG, kv_slots=num_slots, max_model_len=None, **options)  # type: ignore[arg-type]
    target, draft = models()
    return start_engine(target, config, draft_model=draft, kept=KEPT)


def test_replies_are_the_plain_ones_in_any_batch_tree_chunk_and_after_preemption() -> None:
    engine = engine_of(40 * BLOCK_LEN, max_batch_rows=64, max_running=16)
    requests = requests_of(15, 0)
    for request in requests:
        engine.add(request)
    ended, _, scored = finish(engine, with_guest=True)
    assert sum(stats.preemptions for stats in ended.values()) > 0
    assert sum(stats.counts.accepted for stats in ended.values()) > 0
    alone, roomy = [again(request) for request in requests], engine_of(8192)
    for request in alone:
        roomy.add(request)
    _, _, expected = finish(roomy)
    assert [request.output.tolist() for request in requests] == [request.output.tolist() for request in alone]
    assert scored == expected
    experts = engine.costs.curve.experts
    assert experts is not None
    assert (experts.num_chosen, experts.num_experts) == (2, 4)
    assert 0 <= experts.novelty <= 1
