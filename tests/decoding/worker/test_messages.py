"""What a caller asks for is the same record on both sides of the socket."""

from __future__ import annotations

from dataclasses import MISSING, fields, replace

import msgspec
import numpy as np
import pytest

from decoding.core.grammar import Grammar
from decoding.core.picture import Numbers, Picture, Span
from decoding.core.sampling_params import SamplingParams
from decoding.core.speculation_params import SpeculationParams
from decoding.errors import RequestRejected
from decoding.worker.calls import Call, Submit, call_of, calls_of, request_of_call, shared_of
from decoding.worker.messages import ToWorker
from decoding.worker.translation import request_of

SAMPLING = SamplingParams(
    max_tokens=20,
    temperature=0.5,
    top_k=7,
    top_p=0.9,
    min_p=0.01,
    seed=2**64 - 1,
    min_tokens=2,
    stop_token_ids=(4, 5),
    ignore_eos=True,
    presence_penalty=2.0,
    frequency_penalty=-1.0,
    repetition_penalty=1.5,
    logit_bias={9: 100.0, 11: -0.5},
    bad_words=((9, 9), (3,)),
    allowed_token_ids=(5, 7),
    logprobs=2,
    prompt_logprobs=1,
    grammar=Grammar("regex", "a+"),
)
SPECULATION = SpeculationParams(
    method="stand",
    max_nodes=12,
    max_depth=3,
    without=frozenset(("bigram", "best_first")),
    branching=5,
    sources=frozenset(("context", "ngram")),
    min_probability=0.1,
    consensus="lengths",
    candidates="coupled",
    verification="rejection",
    trace="trees",
)


PICTURE = Picture(b"digest", {"pixel_values": Numbers.of(np.zeros((1, 2), np.float32))}, (Span(0, 1), Span(3, 2)))


@pytest.mark.parametrize("params", [SAMPLING, SPECULATION], ids=["sampling", "speculation"])
def test_these_requests_ask_for_something_in_every_field(params: SamplingParams | SpeculationParams) -> None:
    for field in fields(params):
        default = field.default_factory() if field.default_factory is not MISSING else field.default
        assert getattr(params, field.name) != default, field.name


def arrived(call: Call) -> list[Submit]:
    received = msgspec.msgpack.decode(msgspec.msgpack.encode(call), type=ToWorker)
    assert isinstance(received, Call)
    shared = shared_of(received)
    return [request_of_call(received, shared, choice) for choice in received.choices]


def test_what_the_requests_of_a_call_share_crosses_once() -> None:
    sampling = SamplingParams(max_tokens=1, allowed_token_ids=tuple(range(1000)), bad_words=((7,) * 500,))
    prompts = [[1] * 300, [2] * 400]
    asked = [
        Submit(
            request_id=f"{number}",
            prompt=prompts[number // 64],
            sampling=replace(sampling, seed=number, max_tokens=number + 1),
            speculation=SPECULATION,
            call_id="c",
            prediction=prompts[1 - number // 64],
        )
        for number in range(128)
    ]
    call = call_of(asked)
    assert arrived(call) == asked
    assert len(msgspec.msgpack.encode(call)) < 2 * len(msgspec.msgpack.encode(call_of(asked[:1])))
    several = [msgspec.structs.replace(each, call_id=f"{number % 3}") for number, each in enumerate(asked)]
    calls = calls_of(several)
    assert [len(each.choices) for each in calls] == [43, 43, 42]
    found = [each for some in calls for each in arrived(some)]
    assert found == [each for start in range(3) for each in several[start::3]]


def test_every_field_crosses_the_socket_unchanged() -> None:
    submit = Submit(
        request_id="r",
        prompt=[1, 2, 3, 4, 5, 6],
        sampling=SAMPLING,
        speculation=SPECULATION,
        tenant="t",
        cache_salt="s",
        session_id="i",
        call_id="c",
        weight=2.0,
        priority=3,
        pooling="mean",
        prediction=[4],
        resumed=[99],
        pictures=[PICTURE],
    )
    assert all(getattr(submit, field.name) != field.default for field in msgspec.structs.fields(Submit))
    (received,) = arrived(call_of([submit]))
    assert received == submit
    request = request_of(received, frozenset({3}))
    assert (request.sampling, request.speculation) == (SAMPLING, SPECULATION)
    assert request.pictures == (PICTURE,)


def test_whole_numbers_arrive_as_the_type_that_is_declared() -> None:
    sampling = SamplingParams(max_tokens=1, temperature=0, logit_bias={1: 2})
    submit = Submit(request_id="r", prompt=[1], sampling=sampling, speculation=SpeculationParams())
    received = arrived(call_of([submit]))[0].sampling
    assert [type(received.temperature), type(received.logit_bias[1])] == [float, float]


@pytest.mark.parametrize("field", ["prompt", "prediction", "resumed"])
def test_a_token_id_that_no_vocabulary_has_is_refused_with_its_field(field: str) -> None:
    submit = Submit(request_id="r", prompt=[1], sampling=SamplingParams(max_tokens=9), speculation=SPECULATION)
    with pytest.raises(RequestRejected) as refused:
        request_of(msgspec.structs.replace(submit, **{field: [1, 2**31]}), frozenset())
    assert refused.value.param == field
