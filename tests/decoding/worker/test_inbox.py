"""Requests wait for their turn by key; a call is read once, when its first request begins."""

from __future__ import annotations

import msgspec
import pytest

from decoding.core.sampling_params import SamplingParams
from decoding.core.speculation_params import SpeculationParams
from decoding.worker import inbox
from decoding.worker.calls import Call, Shared, Submit, call_of, shared_of
from decoding.worker.inbox import Inbox


def call(tenant: str, name: str, count: int) -> Call:
    prompt = [1, 2, 3]
    requests = [
        Submit(
            request_id=f"{name}{number}",
            prompt=prompt,
            sampling=SamplingParams(max_tokens=1, seed=number, bad_words=((1, 2),)),
            speculation=SpeculationParams(),
            tenant=tenant,
            call_id=name,
            resumed=[7] * number,
        )
        for number in range(count)
    ]
    sent = msgspec.msgpack.encode(call_of(requests))
    return msgspec.msgpack.decode(sent, type=Call)


def ids(waiting: Inbox) -> list[str]:
    found = []
    while (request := waiting.take()) is not None:
        found.append(request.request_id)
    return found


def test_keys_take_turns_and_a_keys_calls_begin_in_their_order() -> None:
    waiting = Inbox()
    for each in (call("a", "x", 3), call("a", "y", 2), call("b", "z", 2)):
        waiting.add(each)
    assert len(waiting) == 7
    assert ids(waiting) == ["x0", "z0", "x1", "z1", "x2", "y0", "y1"]
    assert len(waiting) == 0
    waiting.add(call("b", "w", 1))
    assert ids(waiting) == ["w0"]


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[Shared]:
    """What was read of calls."""
    found: list[Shared] = []

    def read(call: Call) -> Shared:
        found.append(shared_of(call))
        return found[-1]

    monkeypatch.setattr(inbox, "shared_of", read)
    return found


def test_requests_of_a_call_share_what_was_read_once(reads: list[Shared]) -> None:
    waiting = Inbox()
    waiting.add(call("a", "x", 3))
    requests = [waiting.take() for _ in range(3)]
    (shared,) = reads
    assert all(each is not None and each.prompt is shared.prompts[0] for each in requests)
    assert all(each is not None and each.sampling.bad_words is shared.sampling.bad_words for each in requests)


def test_what_is_aborted_before_it_begins_is_not_read(reads: list[Shared]) -> None:
    waiting = Inbox()
    for each in (call("a", "x", 2), call("a", "y", 2), call("b", "z", 1)):
        waiting.add(each)
    dropped = [waiting.drop(each) for each in ("x1", "x0", "z0", "y0", "nobody's", "x0")]
    assert [None if each is None else (each.prompt_len, each.resumed) for each in dropped] == [
        (3, [7]),
        (3, []),
        (3, []),
        (3, []),
        None,
        None,
    ]
    assert reads == []
    assert ids(waiting) == ["y1"]
    assert len(reads) == 1
