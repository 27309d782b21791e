"""Replies of any size are written beside the event loop, or in pieces between which others have it."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import pytest

from server.endpoints.chat.serializer import ChatSerializer
from server.endpoints.completions.serializer import CompletionSerializer
from server.http.work import turn
from server.http.work.turn import Turn
from tests.server.servers import RunningServer, reply_of


@pytest.fixture
def writers(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the threads that wrote a plain reply, one for each reply."""
    names: list[str] = []
    for serializer in (ChatSerializer, CompletionSerializer):
        written = serializer.whole

        def whole(self: Any, *args: Any, written: Any = written) -> Any:
            names.append(threading.current_thread().name)
            return written(self, *args)

        monkeypatch.setattr(serializer, "whole", whole)
    return names


LARGE = [
    {"prompt": "a", "n": 8, "max_tokens": 8, "logprobs": 20},
    {"prompt": "a" * 300, "max_tokens": 1, "prompt_logprobs": 20},
    {"prompt": ["a" * 300, "b" * 300], "max_tokens": 1, "logprobs": 1, "echo": True},
    {"prompt": "a", "n": 100, "max_tokens": 10},
]


@pytest.mark.parametrize("body", LARGE)
def test_a_large_plain_reply_is_written_in_a_thread(
    server: RunningServer, writers: list[str], body: dict[str, Any]
) -> None:
    reply = server.post(**body)
    assert reply.status_code == 200, reply.text
    assert [name.split("_")[0] for name in writers] == ["body"]


def test_so_is_a_chats(server: RunningServer, writers: list[str]) -> None:
    reply = server.chat("a", n=8, max_tokens=8, logprobs=True, top_logprobs=20)
    entries = reply.json()["choices"][7]["logprobs"]["content"]
    assert [len(entry["top_logprobs"]) for entry in entries] == [20] * 8
    assert [name.split("_")[0] for name in writers] == ["body"]


def test_a_small_reply_waits_for_no_thread(server: RunningServer, writers: list[str]) -> None:
    assert server.post(prompt="a", max_tokens=8).status_code == 200
    assert not writers[0].startswith("body")


def test_between_the_choices_of_a_step_others_have_the_event_loop(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a longest turn of nothing, every choice gives way; the stream says the same."""
    turns: list[None] = []

    async def counted(delay: float) -> None:
        turns.append(None)
        await sleep(delay)

    sleep = asyncio.sleep
    body = {
        "prompt": json.dumps({"say": "z" * 20, "per_step": 20}),
        "n": 16,
        "max_tokens": 20,
        "logprobs": 20,
        "stream": True,
    }
    expected = reply_of(server.post(**body))
    monkeypatch.setattr(turn, "LONGEST", -1.0)
    monkeypatch.setattr(turn, "sleep", counted)
    assert reply_of(server.post(**body)) == expected
    assert len(turns) >= 2 * 16  # as it is read, and as it is written


def test_a_turn_ends_when_it_has_lasted(monkeypatch: pytest.MonkeyPatch) -> None:
    now, order = [0.0], []
    monkeypatch.setattr(turn, "monotonic", lambda: now[0])

    async def work() -> None:
        mine = Turn()
        for number in range(4):
            now[0] += 0.6 * turn.LONGEST
            order.append(number)
            await mine.share()

    async def others() -> None:
        order.append("others")

    async def both() -> None:
        await asyncio.gather(work(), others())

    asyncio.run(both())
    assert order == [0, 1, "others", 2, 3]
