"""A step in which nobody drafts is launched before the last one is collected, and changes no token.

The sampler is the device's; forwards are the host's, which reads where they were drawn the tokens that it is not told.
The tokens expected are those of an engine that runs step after step and draws on the host.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

import numpy as np
import pytest
import torch

from decoding.cache.block_pool import BLOCK_LEN
from decoding.config import EngineConfig
from decoding.core.events import Failed, Finished, Pooled, Tokens
from decoding.core.grammar import Grammar
from decoding.core.request import FinishReason, Request
from decoding.core.sampling_params import SamplingParams
from decoding.core.token_logprobs import TokenLogprobs
from decoding.engine.ahead.roots import MOST_IN_TURN
from decoding.engine.engine import Engine
from decoding.engine.start import load_engine, start_engine
from decoding.model.target_model import TargetModel
from tests.models import tiny
from tests.pairs import CONFIG, GREEDY, SAMPLED, GivenTimings, finish, prompt_of, reply, request_of
from tests.watched import Watched, watch

pytest.importorskip("triton", reason="Triton is not installed, which the sampler's kernels are written in")

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="interpreted kernels are for machines without a GPU")

LENGTH, NUM_TOKENS = 160, 14
SMALL = replace(CONFIG, max_model_len=LENGTH, kv_slots=1024, max_batch_rows=64, max_nodes=6)
LAWS = {"greedy": replace(GREEDY, max_tokens=NUM_TOKENS), "sampled": replace(SAMPLED, max_tokens=NUM_TOKENS)}


@pytest.fixture(scope="module")
def target() -> TargetModel:
    return TargetModel.from_model(tiny("llama"), SMALL)


@pytest.fixture(scope="module")
def plain(target: TargetModel) -> Engine:
    return start_engine(target, SMALL, kept=GivenTimings(LENGTH))


@pytest.fixture(scope="module")
def new_device(target: TargetModel) -> Callable[..., tuple[Engine, Watched]]:
    def new(**options: Any) -> tuple[Engine, Watched]:
        return watch(start_engine(target, replace(SMALL, **options), kept=GivenTimings(LENGTH)))

    return new


@pytest.fixture(scope="module")
def device(new_device: Callable[..., tuple[Engine, Watched]]) -> tuple[Engine, Watched]:
    return new_device()


def requests_of(sampling: SamplingParams, count: int = 3, method: str = "none") -> list[Request]:
    """Of their own prompts, seeds and lengths."""
    return [
        request_of(
            f"{method} {place}",
            prompt_of(9 + 5 * place, place),
            replace(sampling, seed=place, max_tokens=sampling.max_tokens - 3 * place),
            method,
        )
        for place in range(count)
    ]


def run(engine: Engine, requests: Sequence[Request]) -> list[list[int]]:
    for request in requests:
        engine.add(request)
    finish(engine)
    return [request.output.tolist() for request in requests]


@pytest.mark.parametrize("law", LAWS)
def test_steps_are_launched_before_the_last_is_collected_and_tokens_stay(
    plain: Engine, device: tuple[Engine, Watched], law: str
) -> None:
    engine, watched = device
    watched.log.clear()
    expected = [reply(plain, request) for request in requests_of(LAWS[law])]
    assert run(engine, requests_of(LAWS[law])) == expected
    log = watched.log
    assert log[:4] == ["planned", "ahead", "collected", "ahead"], "prompts and roots, then each step's tokens"
    assert log.count("planned") == 1
    assert log[-3:] == ["ahead", "collected", "collected"], "the longest reply's last step has none after it"


def test_what_is_told_of_each_token_stays(plain: Engine, device: tuple[Engine, Watched]) -> None:
    def told(engine: Engine) -> list[TokenLogprobs]:
        engine.add(request_of("told", prompt_of(12), replace(LAWS["sampled"], logprobs=2)))
        found: list[TokenLogprobs] = []
        while engine.has_work:
            for tokens in engine.step().of(Tokens):
                found += tokens.logprobs or []
        return found

    engine, watched = device
    watched.log.clear()
    ours, theirs = told(engine), told(plain)
    assert watched.num_ahead == NUM_TOKENS - 1
    assert [each.token_id for each in ours] == [each.token_id for each in theirs]
    assert [each.logprob for each in ours] == pytest.approx([each.logprob for each in theirs], abs=1e-4)
    assert [[token for token, _ in each.top] for each in ours] == [[token for token, _ in each.top] for each in theirs]


@pytest.mark.parametrize("law", LAWS)
def test_tokens_beyond_an_end_are_dropped(plain: Engine, device: tuple[Engine, Watched], law: str) -> None:
    """Each reply has an end of its own; the step after it was under way with one row more."""
    engine, watched = device
    stops = []
    for place, request in enumerate(requests_of(LAWS[law])):
        tokens = reply(plain, request)
        stops.append((tokens[4 + place],))

    def asked() -> list[Request]:
        return [
            replace_sampling(request, stop_token_ids=stop)
            for request, stop in zip(requests_of(LAWS[law]), stops, strict=True)
        ]

    expected = [reply(plain, request) for request in asked()]
    watched.log.clear()
    for request in asked():
        engine.add(request)
    told: dict[str, list[int]] = {}
    ended: dict[str, FinishReason] = {}
    while engine.has_work:
        result = engine.step()
        engine.pool.check_integrity()
        for event in result.events:
            assert event.request_id not in ended, "nothing is told of a reply after its end"
            if isinstance(event, Tokens):
                told.setdefault(event.request_id, []).extend(event.token_ids)
            if isinstance(event, Finished):
                ended[event.request_id] = event.reason
    assert [told[request.id] for request in asked()] == expected
    assert set(ended.values()) == {FinishReason.STOP}
    assert watched.log.count("ahead") > watched.log.count("collected") - watched.log.count("planned"), "one in vain"
    assert engine.pool.num_held == 0


def replace_sampling(request: Request, **changes: Any) -> Request:
    sampling = replace(request.sampling, **changes)
    return Request(id=request.id, prompt=request.prompt, sampling=sampling, speculation=request.speculation)


def test_who_is_aborted_leaves_at_once_and_others_go_on(plain: Engine, device: tuple[Engine, Watched]) -> None:
    engine, _ = device
    expected = [reply(plain, request) for request in requests_of(LAWS["sampled"])]
    requests = requests_of(LAWS["sampled"])
    for request in requests:
        engine.add(request)
    for _ in range(4):
        engine.step()
    assert engine._launched is not None
    held = engine.pool.num_held
    assert engine.abort(requests[1].id) is not None
    assert engine.pool.num_held < held
    joined = request_of("joins", prompt_of(30, 9), LAWS["greedy"])  # in blocks that the step under way writes to
    engine.add(joined)
    finish(engine)
    assert [requests[0].output.tolist(), requests[2].output.tolist()] == [expected[0], expected[2]]
    assert requests[1].output.tolist() == expected[1][: requests[1].num_output]
    assert joined.output.tolist() == reply(plain, request_of("alone", prompt_of(30, 9), LAWS["greedy"]))


def test_the_last_one_may_be_aborted_while_its_next_step_runs(plain: Engine, device: tuple[Engine, Watched]) -> None:
    engine, _ = device
    [request] = requests_of(LAWS["greedy"], 1)
    engine.add(request)
    engine.step()
    assert engine.abort(request.id) is not None
    assert not engine.has_work
    assert run(engine, requests_of(LAWS["greedy"], 1)) == [reply(plain, requests_of(LAWS["greedy"], 1)[0])]


def test_who_joins_is_seen_a_step_later(plain: Engine, device: tuple[Engine, Watched]) -> None:
    engine, watched = device
    first, second, third = requests_of(LAWS["sampled"])
    expected = [reply(plain, request) for request in requests_of(LAWS["sampled"])]
    engine.add(first)
    for request in (second, third):
        engine.step()
        engine.step()
        engine.add(request)
        watched.log.clear()
        engine.step()
        assert watched.log == ["collected"], "of the step under way; none follows it unseen"
        engine.step()
        assert watched.log == ["collected", "planned", "ahead", "collected"]
    finish(engine)
    assert [request.output.tolist() for request in (first, second, third)] == expected


NEEDS_THE_LAST_TOKEN = {
    "penalised": {"presence_penalty": 0.6, "repetition_penalty": 1.2},
    "forbidding": {"bad_words": ((3, 4),)},
    "early": {"min_tokens": 6},
}


@pytest.mark.parametrize("needs", NEEDS_THE_LAST_TOKEN)
def test_where_a_mask_needs_the_last_token_steps_wait_for_it(
    plain: Engine, device: tuple[Engine, Watched], needs: str
) -> None:
    engine, watched = device
    sampling = replace(LAWS["sampled"], max_tokens=8, **NEEDS_THE_LAST_TOKEN[needs])

    def asked() -> list[Request]:
        return [request_of("needs", prompt_of(11, 4), sampling), *requests_of(LAWS["greedy"], 2)]

    expected = [reply(plain, request) for request in asked()]
    watched.log.clear()
    assert run(engine, asked()) == expected
    until = 6 if needs == "early" else 8
    assert watched.log[: 2 * until] == ["planned", "collected"] * until
    assert watched.num_ahead >= 3, "once it has ended"


def test_a_grammar_is_kept() -> None:
    """Of a model that writes, beside a request without one."""
    writing = EngineConfig(draft_model="none", max_model_len=400, kv_slots=1024, threads=1)
    engine = load_engine(writing, kept=GivenTimings(400))
    grammar = replace(LAWS["sampled"], max_tokens=5, ignore_eos=False, grammar=Grammar("regex", "[a-c ]{12}"))

    def asked() -> list[Request]:
        return [request_of("grammar", prompt_of(9), grammar), request_of("free", prompt_of(7, 2), LAWS["greedy"])]

    on_host = run(engine, asked())
    engine, watched = watch(engine)
    assert run(engine, asked()) == on_host
    assert watched.num_ahead > 0


def test_who_drafts_is_not_run_ahead_of(plain: Engine, device: tuple[Engine, Watched]) -> None:
    engine, watched = device
    plain_requests = requests_of(LAWS["sampled"])
    drafted = [request_of(method, prompt_of(10, place), LAWS["sampled"], method, max_nodes=4)
               for place, method in enumerate(("spine", "auto"))]  # fmt: skip
    expected = [reply(plain, request) for request in requests_of(LAWS["sampled"])]
    expected += [reply(plain, request_of("plain", request.prompt, request.sampling)) for request in drafted]
    watched.log.clear()
    long = request_of("long", prompt_of(8, 5), replace(LAWS["greedy"], max_tokens=40))
    assert run(engine, [*plain_requests, *drafted, long])[:-1] == expected
    first = watched.log.index("ahead")
    assert first > 6, "while somebody drafts each step is planned"
    assert watched.log[first - 1 :].count("planned") <= 1, "then none is"
    assert long.output.tolist() == reply(plain, request_of("long", long.prompt, long.sampling))


def test_those_whom_probes_told_nothing_are_asked_together_now_and_then(
    plain: Engine, device: tuple[Engine, Watched]
) -> None:
    engine, watched = device
    sampling = replace(SAMPLED, temperature=3.0, top_p=1.0, max_tokens=70)
    expected = [reply(plain, request) for request in requests_of(sampling)]
    watched.log.clear()
    assert run(engine, requests_of(sampling, method="auto")) == expected
    launches = [event for event in watched.log if event != "collected"]
    in_turn = [len(list(group)) for kind, group in groupby(launches) if kind == "ahead"]
    assert max(in_turn) == MOST_IN_TURN, "then those are due that have slept long enough"
    assert sum(in_turn) > len(launches) / 2


@pytest.mark.parametrize("with_guest", [False, True])
def test_who_gives_up_its_blocks_is_run_again_to_the_same_tokens(
    plain: Engine, new_device: Callable[..., tuple[Engine, Watched]], with_guest: bool
) -> None:
    engine, watched = new_device(kv_slots=LENGTH)
    lasting = replace(SAMPLED, max_tokens=40)
    expected = [reply(plain, request) for request in requests_of(lasting, 5)]
    requests = requests_of(lasting, 5)
    for request in requests:
        engine.add(request)
    ended, _ = finish(engine, with_guest=with_guest)
    assert [request.output.tolist() for request in requests] == expected
    assert sum(stats.preemptions for stats in ended.values()) > 0
    assert watched.num_ahead > 0


def test_what_was_run_ahead_is_found_again(plain: Engine, device: tuple[Engine, Watched]) -> None:
    """By its tokens, of the reply as well: while it goes on, and once it has ended."""
    engine, _ = device
    sampling = replace(LAWS["greedy"], max_tokens=40)
    prompt = prompt_of(10, 77)
    expected = reply(plain, request_of("first", prompt, sampling))
    longer = np.concatenate((prompt, np.array(expected[:30], np.int32)))
    first = request_of("first", prompt, sampling)
    engine.add(first)
    while first.num_output < 2 * BLOCK_LEN:
        engine.step()
    second, third = (request_of(name, longer, replace(sampling, max_tokens=10)) for name in ("second", "third"))
    engine.add(second)
    ended, _ = finish(engine)
    assert ended["second"].cached_tokens == 2 * BLOCK_LEN, "of the ten and the thirty, whole blocks"
    engine.add(third)
    later, _ = finish(engine)
    assert later["third"].cached_tokens == 2 * BLOCK_LEN
    assert first.output.tolist() == expected
    assert second.output.tolist() == third.output.tolist() == expected[30:]


def test_who_waits_for_a_place_holds_nobody_up(
    plain: Engine, new_device: Callable[..., tuple[Engine, Watched]]
) -> None:
    engine, watched = new_device(max_running=2)
    lasting = replace(LAWS["sampled"], max_tokens=2 * MOST_IN_TURN)
    expected = [reply(plain, request) for request in requests_of(lasting, 5)]
    assert run(engine, requests_of(lasting, 5)) == expected
    planned = watched.log.count("planned")
    assert 4 <= planned < watched.num_ahead / 4
    assert watched.num_ahead > MOST_IN_TURN


def test_a_row_that_is_not_finite_ends_its_request_alone(plain: Engine, device: tuple[Engine, Watched]) -> None:
    """Though the next forward has written over it by the time that it is known."""
    engine, watched = device
    short, long = (request_of(f"{length}", prompt_of(length, length), LAWS["sampled"]) for length in (9, 40))
    expected = [reply(plain, request_of("plain", each.prompt, each.sampling)) for each in (short, long)]
    watched.broken_at = 45
    try:
        for request in (short, long):
            engine.add(request)
        failed = []
        while engine.has_work:
            failed += engine.step().of(Failed)
            engine.pool.check_integrity()
    finally:
        watched.broken_at = 10**6
    assert [(each.request_id, each.code) for each in failed] == [("40", "broken_logits")]
    assert "position 46" in failed[0].message
    assert short.output.tolist() == expected[0]
    assert long.output.tolist() == expected[1][:6]
    assert engine.pool.num_held == 0


def test_a_vector_that_is_asked_for_is_made_of_its_own_forward(device: tuple[Engine, Watched]) -> None:
    engine, _ = device
    vectors = []
    for others in ([], requests_of(LAWS["greedy"], 2)):
        pooled = request_of("pooled", prompt_of(20, 3), replace(GREEDY, max_tokens=1))
        pooled.pooling = "last"
        for request in (*others, pooled):
            engine.add(request)
        while engine.has_work:
            vectors += [np.frombuffer(each.vector, np.float32) for each in engine.step().of(Pooled)]
    assert len(vectors) == 2
    np.testing.assert_allclose(vectors[0], vectors[1], atol=1e-5)


def test_each_step_counts_its_own_tokens_and_prompts(device: tuple[Engine, Watched]) -> None:
    engine, _ = device
    requests = requests_of(LAWS["greedy"])
    for request in requests:
        engine.add(request)
    _, steps = finish(engine)
    emitted = sum(counts.emitted for stats in steps for counts in stats.counts_by_method.values())
    assert emitted == sum(request.num_output for request in requests)
    assert sum(stats.prefix_queries for stats in steps) == sum(len(request.prompt) for request in requests)
    assert all(seconds >= 0 for stats in steps for seconds in stats.phase_seconds.values())
    assert all(sum(stats.phase_seconds.values()) <= stats.step_seconds for stats in steps)
