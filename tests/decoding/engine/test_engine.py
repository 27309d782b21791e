"""The engine gives every request the tokens plain decoding gives it, whatever drafts, batches and stops."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from decoding.cache.block_pool import BLOCK_LEN
from decoding.config import EngineConfig
from decoding.core.events import Finished, PromptProgress, Tokens
from decoding.core.grammar import Grammar
from decoding.core.request import FinishReason, Request
from decoding.core.sampling_params import SamplingParams
from decoding.core.speculation_params import SpeculationParams
from decoding.core.stats import RequestStats
from decoding.drafting import registry as drafters
from decoding.engine.engine import Engine
from decoding.engine.sequence import PROGRESS_SECONDS
from decoding.engine.start import start_engine
from decoding.errors import RequestRejected
from decoding.model.target_model import TargetModel
from tests.asking import own_nodes
from tests.fakes import ScriptedDrafter
from tests.models import EOS_TOKEN_ID, VOCAB_SIZE, tiny
from tests.pairs import GIVEN

CONFIG = EngineConfig(max_model_len=400, kv_slots=8192, max_batch_rows=160, threads=1)
GREEDY = SamplingParams(max_tokens=48, temperature=0.0, ignore_eos=True)
SAMPLED = SamplingParams(max_tokens=48, temperature=0.8, top_p=0.95, seed=1234, ignore_eos=True)
METHODS = sorted(set(drafters.available(has_draft_model=False)) - {"none"})


def new_engine(dtype: str = "float32", **options: Any) -> Engine:
    config = replace(CONFIG, dtype=dtype, **options)
    return start_engine(TargetModel.from_model(tiny("llama").to(getattr(torch, dtype)), config), config, kept=GIVEN)


@pytest.fixture(scope="module", params=["float32", pytest.param("bfloat16", marks=pytest.mark.slow)])
def engine(request: pytest.FixtureRequest) -> Engine:
    return new_engine(request.param)


@pytest.fixture(scope="module")
def float_engine() -> Engine:
    return new_engine()


def prompt_of(length: int, seed: int = 0) -> NDArray[np.int32]:
    """A prompt that repeats itself, so that look-ups match."""
    part = np.random.default_rng(seed).integers(3, VOCAB_SIZE, max(2, length // 3))
    return np.resize(part, length).astype(np.int32)


def request_of(
    name: str, prompt: NDArray[np.int32], sampling: SamplingParams, method: str = "none", **options: object
) -> Request:
    options.setdefault("max_nodes", own_nodes(method, CONFIG.max_nodes))
    speculation = SpeculationParams(method=method, **options)  # type: ignore[arg-type]
    return Request(
        id=name,
        prompt=prompt,
        sampling=sampling,
        speculation=speculation,
        eos_token_ids=frozenset({EOS_TOKEN_ID}),
        session_id=name,
    )


def test_a_step_says_which_requests_it_runs_before_it_does() -> None:
    engine = new_engine(max_running=2)
    announced: list[list[str]] = []
    for name in ("one", "other", "waits"):
        engine.add(request_of(name, prompt_of(9), replace(GREEDY, max_tokens=2)))
    while engine.has_work:
        engine.step(announce=lambda ids, _: announced.append(ids))
    assert announced[0] == ["one", "other"]
    assert announced[-1] == ["waits"]


def finish(engine: Engine) -> dict[str, RequestStats]:
    """Run until nothing is left; what each request cost. Nobody holds a block then."""
    ended = {}
    for _ in range(5000):
        if not engine.has_work:
            break
        ended.update({finished.request_id: finished.stats for finished in engine.step().of(Finished)})
        engine.pool.check_integrity()
    assert not engine.has_work
    assert engine.pool.num_held == 0
    return ended


def reply(engine: Engine, request: Request) -> list[int]:
    engine.add(request)
    finish(engine)
    return request.output.tolist()


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("method", METHODS)
def test_every_method_gives_the_plain_tokens(engine: Engine, method: str, sampling: SamplingParams) -> None:
    if not engine.model.is_exact:
        pytest.skip("this processor does not give row-invariant arithmetic")
    accepted = rejected = 0
    for seed in range(3):
        prompt = prompt_of(40, seed)
        plain = reply(engine, request_of(f"plain{seed}", prompt, sampling))
        drafted = request_of(f"{method}{seed}", prompt, sampling, method, max_nodes=24)
        engine.add(drafted)
        while engine.has_work:
            for finished in engine.step().of(Finished):
                accepted += finished.stats.counts.accepted
                rejected += finished.stats.counts.drafted - finished.stats.counts.accepted
        assert drafted.output.tolist() == plain
    assert rejected > 0
    if sampling is GREEDY:
        assert accepted > 0


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_a_mostly_right_drafter_gives_the_plain_tokens_in_fewer_steps(engine: Engine, sampling: SamplingParams) -> None:
    prompt = prompt_of(70)
    plain = reply(engine, request_of("plain", prompt, sampling))
    drafted = request_of("drafted", prompt, sampling, "lookup", max_nodes=20)
    drafted.tenant = "one whose prompts nobody has run"
    drafter = ScriptedDrafter(drafted, np.array(plain, np.int32), VOCAB_SIZE)
    engine.add(drafted, lambda *_: drafter)
    finish(engine)
    assert drafted.output.tolist() == plain
    assert drafter.num_prefilled == len(prompt) - 1
    assert drafter.num_accepted > 30
    assert drafter.num_rejected > 30


@pytest.mark.parametrize("method", ["spine", "recycle", "isotropic"])
def test_a_session_learns_from_a_prompt_whoever_ran_it(float_engine: Engine, method: str) -> None:
    found, learnt = [], []
    for name in ("first", "second"):
        request = request_of(name, prompt_of(70), replace(GREEDY, max_tokens=1), method)
        request.tenant = method
        float_engine.add(request)
        found.append(finish(float_engine)[name].cached_tokens)
        learnt.append(float_engine.sessions.open(method, name).ngrams.num_entries[0])
    assert found == [0, 64]
    assert learnt[0] == learnt[1] > 0


def test_greedy_equals_transformers_generate(float_engine: Engine) -> None:
    model = tiny("llama")
    for seed, length in enumerate((1, 7, 33, 64, 65, 100)):
        prompt = prompt_of(length, seed)
        generated = model.generate(
            torch.tensor(prompt[None].astype(np.int64)),
            attention_mask=torch.ones(1, length, dtype=torch.long),
            max_new_tokens=GREEDY.max_tokens,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
        for method in ("none", "spine"):
            ours = reply(float_engine, request_of(f"{method}{seed}", prompt, GREEDY, method))
            assert ours == generated[0, length:].tolist()


def test_requests_of_all_kinds_together_get_what_they_get_alone(engine: Engine) -> None:
    if not engine.model.is_exact:
        pytest.skip("this processor does not give row-invariant arithmetic")
    methods = ["none", "auto", *METHODS]
    asked = [
        (
            prompt_of(3 + 7 * place, place),
            replace(GREEDY if place % 3 else SAMPLED, max_tokens=8 + 3 * place, seed=place),
            methods[place % len(methods)],
        )
        for place in range(24)
    ]
    alone = [
        reply(engine, request_of(f"alone{place}", prompt, sampling))
        for place, (prompt, sampling, _) in enumerate(asked)
    ]
    together = [
        request_of(f"together{place}", prompt, sampling, method)
        for place, (prompt, sampling, method) in enumerate(asked)
    ]
    for place, request in enumerate(together):
        engine.add(request)
        if place % 4 == 3:
            engine.step()
    finish(engine)
    assert [request.output.tolist() for request in together] == alone


def test_a_stop_inside_an_accepted_run_cuts_it_there(float_engine: Engine) -> None:
    prompt = prompt_of(20)
    plain = reply(float_engine, request_of("plain", prompt, GREEDY))
    stop = next(token for place, token in enumerate(plain) if place > 5 and token not in plain[:place])
    cut = plain.index(stop)
    request = request_of("cut", prompt, replace(GREEDY, stop_token_ids=(stop,)), "lookup", max_nodes=40)
    drafter = ScriptedDrafter(request, np.array(plain, np.int32), VOCAB_SIZE, accuracy=1.0)
    float_engine.add(request, lambda *_: drafter)
    result = float_engine.step()
    while not result.of(Finished):
        assert float_engine.has_work
        result = float_engine.step()
    assert request.output.tolist() == plain[: cut + 1]
    assert request.finish_reason is FinishReason.STOP
    assert result.of(Finished)[0].stop_token_id == stop
    assert len(result.of(Tokens)[0].token_ids) < result.of(Finished)[0].stats.counts.accepted + 1
    assert float_engine.pool.num_held == 0


def test_min_tokens_puts_off_the_end_the_same_for_drafted_and_plain(float_engine: Engine) -> None:
    prompt = prompt_of(20)
    free = reply(float_engine, request_of("free", prompt, GREEDY))
    early = replace(GREEDY, stop_token_ids=(free[2],), min_tokens=10)
    plain = reply(float_engine, request_of("plain", prompt, early))
    assert free[2] not in plain[:10]
    request = request_of("drafted", prompt, early, "lookup", max_nodes=20)
    drafter = ScriptedDrafter(request, np.array(plain, np.int32), VOCAB_SIZE)
    float_engine.add(request, lambda *_: drafter)
    finish(float_engine)
    assert request.output.tolist() == plain


@pytest.mark.parametrize("limit", [{"max_batch_rows": 2 * BLOCK_LEN}, {"max_step_ms": 0.001}], ids=["rows", "time"])
def test_a_long_prompt_lets_a_running_stream_go_on_between_chunks(limit: dict[str, Any]) -> None:
    engine = new_engine(**limit)
    stream = request_of("stream", prompt_of(4), replace(GREEDY, max_tokens=40))
    engine.add(stream)
    engine.step()
    engine.add(request_of("long", prompt_of(300), replace(GREEDY, max_tokens=2)))
    for expected in range(2, 12):
        result = engine.step()
        assert result.stats is not None
        assert result.stats.rows == 1 + BLOCK_LEN
        assert stream.num_output == expected
    finish(engine)


def test_the_progress_of_a_prompt_is_told_before_each_of_its_steps_that_comes_late_enough() -> None:
    engine = new_engine(max_batch_rows=4 * BLOCK_LEN)
    told: list[PromptProgress] = []
    engine.add(request_of("short", prompt_of(3 * BLOCK_LEN), replace(GREEDY, max_tokens=1)))
    while engine.has_work:
        engine.step(announce=lambda _, progress: told.extend(progress))
    assert not told, "one step is enough"
    long = prompt_of(20 * BLOCK_LEN, seed=1)
    engine.add(request_of("long", long, replace(GREEDY, max_tokens=3)))
    [sequence] = engine._scheduler.all()
    while engine.has_work:
        engine.step(announce=lambda _, progress: told.extend(progress))
        sequence.progress_told -= PROGRESS_SECONDS  # so much later
    assert [each.processed for each in told] == [0, 64, 128, 192]
    told.clear()
    engine.add(request_of("again", np.concatenate((long[: 8 * BLOCK_LEN], prompt_of(12 * BLOCK_LEN, seed=2))), GREEDY))
    engine.step(announce=lambda _, progress: told.extend(progress))
    cached = 8 * BLOCK_LEN
    assert told == [PromptProgress(request_id="again", processed=cached, cached=cached)]
    engine.abort("again")


def test_the_progress_of_a_prompt_is_told_twice_a_second_at_most() -> None:
    engine = new_engine(max_batch_rows=2 * BLOCK_LEN)
    engine.add(request_of("long", prompt_of(100), GREEDY))
    [sequence] = engine._scheduler.all()
    told = [now for now in np.arange(100.0, 103.0, 0.125) if sequence.take_progress(now) is not None]
    assert told == [100.0, 100.5, 101.0, 101.5, 102.0, 102.5]
    finish(engine)
    assert sequence.take_progress(200.0) is None, "its first token has come"


def test_an_aborted_request_whose_prompt_runs_runs_no_further_chunk() -> None:
    engine = new_engine(max_batch_rows=2 * BLOCK_LEN)
    engine.add(request_of("gone", prompt_of(300), GREEDY))
    engine.step()
    assert engine.pool.num_held
    assert engine.abort("gone") is not None
    assert not engine.has_work
    assert engine.pool.num_held == 0
    engine.add(request_of("stays", prompt_of(20, seed=1), replace(GREEDY, max_tokens=1)))
    stats = engine.step().stats
    assert stats is not None
    assert stats.prefill_rows == 19


def test_an_aborted_request_frees_its_room_at_once(float_engine: Engine) -> None:
    float_engine.add(request_of("gone", prompt_of(10), GREEDY))
    float_engine.add(request_of("stays", prompt_of(10), GREEDY))
    float_engine.step()
    num_held = float_engine.pool.num_held
    finished = float_engine.abort("gone")
    assert finished is not None
    assert finished.reason is FinishReason.ABORT
    assert float_engine.pool.num_held < num_held
    assert float_engine.abort("gone") is None
    finish(float_engine)


def test_more_requests_than_room_wait_their_turn_and_get_what_they_get_alone(float_engine: Engine) -> None:
    law = replace(GREEDY, max_tokens=60)
    alone = [reply(float_engine, request_of(f"alone{place}", prompt_of(60, place), law)) for place in range(6)]
    engine = new_engine(kv_slots=400, max_running=6, max_nodes=16)
    requests = [request_of(f"r{place}", prompt_of(60, place), law) for place in range(6)]
    for request in requests:
        engine.add(request)
    engine.step()
    assert 1 <= engine.stats().running < 6
    finish(engine)
    assert [request.output.tolist() for request in requests] == alone


def test_trees_let_a_request_in_that_finds_room_without_them() -> None:
    engine = new_engine(kv_slots=14 * BLOCK_LEN, max_running=3, max_model_len=200)
    for seed in range(2):
        engine.add(request_of(f"drafts{seed}", prompt_of(36, seed), GREEDY, "isotropic", max_nodes=64))
    for _ in range(3):
        engine.step()
    assert engine.pool.num_available == 0
    engine.add(request_of("late", prompt_of(30, 2), GREEDY))
    engine.step()
    assert engine.stats().running == 3
    finish(engine)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"prompt": np.array([VOCAB_SIZE], np.int32)}, "prompt"),
        ({"prompt": np.array([-1], np.int32)}, "prompt"),
        ({"prompt": prompt_of(390)}, "prompt"),
        ({"sampling": replace(GREEDY, temperature=-1.0)}, "temperature"),
        ({"sampling": replace(GREEDY, top_p=0.0)}, "top_p"),
        ({"sampling": replace(GREEDY, min_tokens=99)}, "min_tokens"),
        ({"sampling": replace(GREEDY, presence_penalty=2.5)}, "presence_penalty"),
        ({"sampling": replace(GREEDY, frequency_penalty=float("nan"))}, "frequency_penalty"),
        ({"sampling": replace(GREEDY, repetition_penalty=0.0)}, "repetition_penalty"),
        ({"sampling": replace(GREEDY, logit_bias={3: 101.0})}, "logit_bias"),
        ({"sampling": replace(GREEDY, logit_bias={VOCAB_SIZE: 1.0})}, "logit_bias"),
        ({"sampling": replace(GREEDY, bad_words=((),))}, "bad_words"),
        ({"sampling": replace(GREEDY, bad_words=((3, VOCAB_SIZE),))}, "bad_words"),
        ({"sampling": replace(GREEDY, allowed_token_ids=())}, "allowed_token_ids"),
        ({"sampling": replace(GREEDY, allowed_token_ids=(-1,))}, "allowed_token_ids"),
        ({"sampling": replace(GREEDY, stop_token_ids=(VOCAB_SIZE,))}, "stop_token_ids"),
        ({"sampling": replace(GREEDY, logprobs=21)}, "logprobs"),
        ({"sampling": replace(GREEDY, prompt_logprobs=-1)}, "prompt_logprobs"),
        ({"sampling": replace(GREEDY, grammar=Grammar("regex", "a"))}, "ignore_eos"),
        ({"prediction": np.array([VOCAB_SIZE], np.int32)}, "prediction"),
        (
            {
                "prediction": prompt_of(5),
                "speculation": SpeculationParams(method="stand", verification="rejection"),
            },
            "speculation.verification",
        ),
        ({"speculation": SpeculationParams(method="magic")}, "speculation.method"),
        ({"speculation": SpeculationParams(max_nodes=10_000)}, "speculation.max_nodes"),
    ],
)
def test_what_cannot_be_served_is_rejected_by_name(float_engine: Engine, change: dict[str, object], field: str) -> None:
    asked: dict[str, object] = {
        "id": "bad",
        "prompt": prompt_of(5),
        "sampling": GREEDY,
        "speculation": SpeculationParams(),
    }
    with pytest.raises(RequestRejected) as caught:
        float_engine.add(Request(**{**asked, **change}))  # type: ignore[arg-type]
    assert caught.value.param == field
    assert not float_engine.has_work
