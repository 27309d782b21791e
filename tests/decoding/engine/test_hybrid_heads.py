"""A head over a target whose layers carry a state: it reads layers that attend and others, and replies are the plain
ones, whether their prompts come in pieces, are found again, or give up their room."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from decoding.cache.block_pool import BLOCK_LEN
from decoding.core.request import Request
from decoding.core.sampling_params import SamplingParams
from decoding.core.stats import RequestStats
from decoding.drafting.eagle.checkpoint import save_head
from decoding.drafting.eagle.head_model import HeadModel
from decoding.drafting.eagle.network import EagleHead
from decoding.drafting.head_loading import load_head_model
from decoding.engine.engine import Engine
from decoding.engine.start import start_engine
from decoding.model.device.runner import silent
from decoding.model.target_model import TargetModel
from tests.heads import fields_of, new_head, trained_head
from tests.models import tiny
from tests.pairs import CONFIG, GIVEN, finish, prompt_of, request_of

METHODS = ("eagle", "auto", "dynamic")
LAWS = {
    "greedy": SamplingParams(max_tokens=24, temperature=0.0, ignore_eos=True),
    "sampled": SamplingParams(max_tokens=24, temperature=0.7, seed=5, ignore_eos=True),
}


@dataclass(frozen=True)
class Bench:
    """has_learned: the head says now and then what its target does; else its weights are random."""

    target: TargetModel
    head: HeadModel
    engine: Engine
    has_learned: bool

    def replies(self, *requests: Request, engine: Engine | None = None, with_guest: bool = False) -> list[RequestStats]:
        """Run these together. They get the tokens of plain requests that ran alone, of which nothing was remembered."""
        plain = [request_of(f"plain {each.id}", each.prompt, each.sampling) for each in requests]
        for each in plain:
            self.engine.start_afresh(0.0)
            self.engine.add(each)
            finish(self.engine)
        if engine is None:
            self.engine.start_afresh(0.0)
        return self.go_on(*requests, plain=plain, engine=engine, with_guest=with_guest)

    def go_on(
        self, *requests: Request, plain: list[Request], engine: Engine | None = None, with_guest: bool = False
    ) -> list[RequestStats]:
        """Run these together over what is remembered."""
        engine = engine or self.engine
        for each in requests:
            engine.add(each)
        ended, _ = finish(engine, with_guest=with_guest)
        assert [each.output.tolist() for each in requests] == [each.output.tolist() for each in plain]
        return [ended[each.id] for each in requests]


def head_for(model_type: str, *, has_learned: bool) -> EagleHead:
    if has_learned:
        return deepcopy(trained_head(model_type))
    return new_head(tiny(model_type).get_input_embeddings().weight, fields_of(draft_vocab_size=150))


@cache
def bench_of(model_type: str, folder: Path) -> Bench:
    config = replace(CONFIG, draft_head=str(folder), max_batch_rows=96)
    has_learned = model_type == "lfm2"  # whose own forward is quick enough to train on
    save_head(head_for(model_type, has_learned=has_learned), folder, "tiny")
    target = TargetModel.from_model(tiny(model_type), config)
    if not target.is_exact:
        pytest.skip("this processor does not give row-invariant arithmetic")
    head = load_head_model(config, target, silent)
    assert head is not None
    return Bench(target, head, start_engine(target, config, draft_model=head, kept=GIVEN), has_learned)


@pytest.fixture(scope="module", params=["lfm2", pytest.param("qwen3_next", marks=pytest.mark.slow)])
def bench(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return bench_of(request.param, tmp_path_factory.mktemp("head"))


def assert_some_accepted_and_some_rejected(bench: Bench, ended: list[RequestStats]) -> None:
    drafted = sum(each.counts.drafted_by_source.get("draft_model", 0) for each in ended)
    accepted = sum(each.counts.accepted_by_source.get("draft_model", 0) for each in ended)
    assert drafted > accepted
    assert accepted > 0 or not bench.has_learned


def test_a_head_reads_layers_that_do_not_attend(bench: Bench) -> None:
    assert len(bench.target.layers) == 1
    assert bench.target.num_layers == 3
    assert bench.target.taps[0]._layers == (1, 2, 3)


@pytest.mark.parametrize("law", LAWS)
def test_a_drafted_reply_is_the_plain_one(bench: Bench, law: str) -> None:
    ended = []
    for method in METHODS:
        ended += bench.replies(request_of(method, np.tile(prompt_of(20, 0), 2), LAWS[law], method))
        assert set(ended[-1].steps_by_method) >= {method}
    assert_some_accepted_and_some_rejected(bench, ended)


def test_eight_at_once_in_chunks_are_answered_as_alone(bench: Bench) -> None:
    requests = [
        request_of(
            f"{place}", prompt_of(9 + 29 * place, place), list(LAWS.values())[place % 2], ("none", *METHODS)[place % 4]
        )
        for place in range(8)
    ]
    ended = bench.replies(*requests)
    assert sum(each.prefill_chunks for each in ended) > 0
    assert_some_accepted_and_some_rejected(bench, ended)


@pytest.mark.parametrize("method", METHODS)
def test_a_prompt_that_is_found_is_drafted_for(bench: Bench, method: str) -> None:
    """The checkpoint is of the target's states; the head finds its own keys and features in the shared blocks."""
    prompt = prompt_of(100, 7)
    first, again = (request_of(name, prompt, LAWS["sampled"], method) for name in ("first", "again"))
    (before,) = bench.replies(first)
    (after,) = bench.go_on(again, plain=[first])
    assert before.cached_tokens == 0
    assert after.cached_tokens == 96
    if method == "eagle":  # the others weigh what the first has shown
        assert after.counts.drafted_by_source == before.counts.drafted_by_source


def test_choices_and_turns_get_the_plain_tokens(bench: Bench) -> None:
    choices = [
        request_of(f"{seed}", prompt_of(80, 9), replace(LAWS["sampled"], seed=seed), METHODS[seed]) for seed in range(3)
    ]
    ended = bench.replies(*choices)
    assert sorted(each.cached_tokens for each in ended) == [0, 64, 64]
    turn = request_of("turn", np.concatenate((choices[0].tokens, prompt_of(9, 3))), LAWS["greedy"], "eagle")
    ended += bench.replies(turn)
    assert_some_accepted_and_some_rejected(bench, ended)


@pytest.mark.parametrize("prefix_cache", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_whoever_gives_up_its_room_says_the_same(bench: Bench, *, prefix_cache: bool) -> None:
    config = replace(CONFIG, kv_slots=14 * BLOCK_LEN, max_model_len=None, max_running=4, max_batch_rows=64)
    config = replace(config, prefix_cache=prefix_cache)
    engine = start_engine(bench.target, config, draft_model=bench.head, kept=GIVEN)
    requests = [
        request_of(f"{place}", prompt_of(40, place), LAWS["sampled"], METHODS[place % 3], max_nodes=16)
        for place in range(5)
    ]
    ended = bench.replies(*requests, engine=engine, with_guest=True)
    assert sum(each.preemptions for each in ended) > 0
    assert_some_accepted_and_some_rejected(bench, ended)
