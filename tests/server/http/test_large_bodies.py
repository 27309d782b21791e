"""Large bodies: worked on beside the event loop, bounded in their parts, refused by the field and never with a 500."""

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, ClassVar

import httpx
import pytest
from pydantic import ValidationError

from server.generation.response_store import StoredResponse, written_items
from server.http.body import has_more_parts, parse_body
from server.http.errors import ApiError
from server.http.work.work_pool import NUM_THREADS, WorkPool
from server.schemas.catalog import DetokenizeRequest
from server.schemas.chat import ChatRequest
from server.schemas.completions import CompletionRequest
from server.schemas.responses import InputItem, ResponseRequest
from tests.server.http.test_bad_input import check_error
from tests.server.servers import RunningServer, wait_until

USER = {"role": "user", "content": "hi"}
HALF = "\ud800"  # of a surrogate pair


def nested(depth: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(depth):
        value = {"a": value}
    return value


def tools(parameters: Any, **function: Any) -> list[dict[str, Any]]:
    return [{"type": "function", "function": {"name": "f", "parameters": parameters} | function}]


def call(arguments: str) -> dict[str, Any]:
    return {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}


def calls(count: int) -> list[dict[str, Any]]:
    return [{"type": "function_call", "call_id": f"c{i}", "name": "f", "arguments": "{}"} for i in range(count)]


CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"
REFUSED: list[tuple[str, dict[str, Any], str, str]] = [
    *(
        (CHAT, {"messages": [USER], "tools": tools({keyword: value}), "tool_choice": "required"}, "tools", code)
        for keyword in ("$defs", "definitions")
        for value, code in (([], "invalid_schema"), ("x", "invalid_schema"), (1, "invalid_schema"))
    ),
    (CHAT, {"messages": [USER], "tools": tools({"$defs": [1]}, strict=True)}, "tools", "invalid_schema"),
    (CHAT, {"messages": [USER], "tools": tools({"title": HALF}, strict=True)}, "tools", "invalid_unicode"),
    (CHAT, {"messages": [USER], "tools": tools(nested(200), strict=True)}, "tools", "above_limit"),
    (CHAT, {"messages": [USER], "tools": tools(nested(300))}, "", "above_limit"),
    *(
        (
            CHAT,
            {"messages": [USER, {"role": "assistant", "tool_calls": [call("[" * depth + "]" * depth)]}]},
            "messages",
            "above_limit",
        )
        for depth in (300, 900, 5000, 100_000)
    ),
    (
        CHAT,
        {"messages": [USER, {"role": "assistant", "tool_calls": [call("[" + "[]," * 70_000 + "[]]")]}]},
        "messages",
        "above_limit",
    ),
    (RESPONSES, {"input": [{"role": "user", "content": "hi"}, *calls(129)]}, "input", "above_limit"),
    (RESPONSES, {"input": [calls(1)[0] | {"call_id": ""}]}, "input.0.call_id", "invalid_value"),
    (RESPONSES, {"input": [calls(1)[0] | {"name": ""}]}, "input.0.name", "invalid_value"),
    (RESPONSES, {"input": "hi", "metadata": {str(i): "" for i in range(17)}}, "metadata", "above_limit"),
    ("/v1/completions", {"prompt": "x", "bad_words": ["x" * 257]}, "bad_words.0", "invalid_value"),
    ("/v1/completions", {"prompt": "x", "bad_words": [HALF]}, "bad_words.0", "invalid_value"),
    ("/v1/completions", {"prompt": "x" * 2**22}, "", "body_too_large"),
    ("/v1/completions", {"prompt": "x" * 2**21}, "prompt", "context_length_exceeded"),
    ("/v1/completions", {"prompt": [7] * 2**20}, "prompt", "context_length_exceeded"),
    ("/v1/completions", {"prompt": "x", "guided_json": {str(i): 1 for i in range(70_000)}}, "", "above_limit"),
    ("/tokenize", {"prompt": "x" * 2**21}, "prompt", "context_length_exceeded"),
    ("/detokenize", {"tokens": [7] * 5000}, "tokens", "above_limit"),
    (CHAT, {"messages": [{"role": "user", "content": "x" * 2**21}]}, "messages", "context_length_exceeded"),
    (RESPONSES, {"input": "x" * 2**21}, "input", "context_length_exceeded"),
]


@pytest.mark.parametrize(("path", "body", "param", "code"), REFUSED, ids=lambda value: str(value)[:60])
def test_the_field_at_fault_is_named(
    server: RunningServer, path: str, body: dict[str, Any], param: str, code: str
) -> None:
    response = server.http.post(path, content=json.dumps(body), headers={"Content-Type": "application/json"})
    check_error(response, 413 if code == "body_too_large" else 400, param or None, code)


def test_as_many_function_calls_as_a_message_may_have_are_answered(server: RunningServer) -> None:
    items = [{"role": "user", "content": "hi"}, *calls(128), {"role": "user", "content": "so?"}]
    body = {"input": items, "max_output_tokens": 2}
    response = server.http.post(RESPONSES, json=body)
    assert response.status_code in (200, 400), response.text
    assert response.status_code == 200 or response.json()["error"]["code"] == "context_length_exceeded"


@contextmanager
def recorded_encoding(server: RunningServer) -> Iterator[list[tuple[str, str]]]:
    """The texts that the server encodes, each with the name of the thread."""
    before = server.served.tokenizer
    assert before is not None
    encode, seen = before.encode_with, list[tuple[str, str]]()

    def recording(text: str, add_special_tokens: bool, parse_special: bool) -> list[int]:
        seen.append((text, threading.current_thread().name))
        return encode(text, add_special_tokens, parse_special)

    server.served.tokenizer = replace(before, encode_with=recording)
    try:
        yield seen
    finally:
        server.served.tokenizer = before


def test_all_of_a_large_body_is_encoded_beside_the_event_loop(server: RunningServer) -> None:
    words, user = [f"{number}" + "x" * 200 for number in range(15)], "x" * 10_000
    expected = {"type": "content", "content": "yo"}
    with recorded_encoding(server) as seen:
        asked = {"prompt": "hi", "max_tokens": 2, "bad_words": words, "prediction": expected, "metadata": {"a": user}}
        assert server.post(**asked).status_code == 200
    assert {"hi", "yo", *words} <= {text for text, _ in seen}
    assert {name.rsplit("_", 1)[0] for _, name in seen} == {"body"}


class WatchedResponse(StoredResponse):
    """A stored response that knows which threads have read it."""

    readers: ClassVar[list[str]] = []

    def read_items(self) -> list[InputItem]:
        self.readers.append(threading.current_thread().name)
        return super().read_items()


@pytest.mark.parametrize("path", [RESPONSES, f"{RESPONSES}/input_tokens"])
def test_a_small_body_that_continues_a_long_conversation_is_worked_on_beside_the_event_loop(
    server: RunningServer, path: str
) -> None:
    WatchedResponse.readers.clear()
    thoughts = written_items([InputItem(type="reasoning")] * 100)
    server.service.responses.keep("", "resp_long", WatchedResponse(b"{}", thoughts, 0))
    body = {"input": "hi", "previous_response_id": "resp_long"}
    with recorded_encoding(server) as seen:
        assert server.http.post(path, json=body).status_code == 200
    threads = [*WatchedResponse.readers, *(name for _, name in seen)]
    assert len(threads) >= 2
    assert {name.rsplit("_", 1)[0] for name in threads} == {"body"}


def test_a_small_body_waits_for_no_thread(server: RunningServer) -> None:
    with all_threads_taken(server):
        assert server.post(prompt="hi", max_tokens=2).status_code == 200


def test_a_large_body_whose_client_leaves_is_dropped_and_counted(server: RunningServer) -> None:
    text = "left" * 5000
    left = 'gander_http_requests_total{route="/v1/completions",status="499"}'
    with recorded_encoding(server) as seen, all_threads_taken(server):
        with pytest.raises(httpx.ReadTimeout):
            server.http.post("/v1/completions", json={"prompt": ["hi", text]}, timeout=0.2)
        wait_until(lambda: left in server.get("/metrics").text)
    assert server.post(prompt="x" * 20, stop="y" * 9000).status_code == 400, "a body that waited behind it"
    assert seen == []


@contextmanager
def all_threads_taken(server: RunningServer) -> Iterator[None]:
    """The threads for bodies are at work until the block ends."""
    pool, loading, gate = server.service.pool, server.served.loading, threading.Event()
    assert loading is not None
    works = [
        asyncio.run_coroutine_threadsafe(pool.run_for("", 1.0, lambda: gate.wait(60)), loading.get_loop())
        for _ in range(NUM_THREADS)
    ]
    try:
        yield
    finally:
        gate.set()
        assert all(work.result(60) for work in works)


def test_what_is_too_long_for_the_context_is_not_encoded(server: RunningServer) -> None:
    with recorded_encoding(server) as seen:
        for path, body in (
            ("/v1/completions", {"prompt": ["x", "y" * 30_000]}),
            (CHAT, {"messages": [{"role": "user", "content": "y" * 30_000}]}),
            ("/tokenize", {"prompt": "y" * 30_000}),
        ):
            check_error(server.http.post(path, json=body), 400, NAMES[path], "context_length_exceeded")
    assert seen == []


NAMES = {"/v1/completions": "prompt", CHAT: "messages", "/tokenize": "prompt"}


class Works:
    """Works that begin when they have a thread and end when they are let."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.pool = WorkPool(lambda: self.seconds)
        self.begun: list[str] = []
        self.gates: dict[str, threading.Event] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def add(self, name: str, weight: float = 1.0) -> None:
        """A work of the key that is the first letter of its name."""
        self.gates[name] = threading.Event()
        self._tasks[name] = asyncio.ensure_future(self.pool.run_for(name[0], weight, lambda: self._work(name)))

    async def until_begun(self, number: int) -> None:
        while len(self.begun) < number:
            await asyncio.sleep(0.001)

    async def end(self, name: str) -> None:
        """Let a work end, a second after those that ended before."""
        self.seconds += 1
        self.gates[name].set()
        await self._tasks[name]

    async def leave(self, *names: str) -> None:
        for name in names:
            self._tasks[name].cancel()
        await asyncio.gather(*(self._tasks[name] for name in names), return_exceptions=True)

    def _work(self, name: str) -> None:
        self.begun.append(name)
        assert self.gates[name].wait(60)


def test_a_key_that_comes_late_has_the_next_thread_and_shares_from_then_on() -> None:
    async def run() -> list[str]:
        works = Works()
        for number in range(10):
            works.add(f"a{number}")
        await works.until_begun(NUM_THREADS)
        for number in range(3):
            works.add(f"b{number}")
        for number in range(13):
            await works.end(works.begun[number])
            await works.until_begun(min(number + 1 + NUM_THREADS, 13))
        works.pool.close()
        return works.begun

    begun = asyncio.run(run())
    assert begun[:3] == ["a0", "a1", "b0"]
    assert {"b1", "b2"} <= set(begun[:9])
    assert [name for name in begun if name[0] == "a"] == [f"a{number}" for number in range(10)], "in their order"


def test_weights_are_shares() -> None:
    async def run() -> list[str]:
        works = Works()
        for number in range(40):
            works.add(f"a{number}")
            works.add(f"b{number}", weight=3.0)
        for number in range(40):
            await works.until_begun(number + NUM_THREADS)
            await works.end(works.begun[number])
        begun = works.begun[:40]
        await works.leave(*(f"{key}{number}" for key in "ab" for number in range(40)))
        for gate in works.gates.values():
            gate.set()
        works.pool.close()
        return begun

    keys = [name[0] for name in asyncio.run(run())]
    assert 9 <= keys.count("a") <= 12, keys


def test_work_of_who_has_left_is_not_begun_and_its_thread_goes_to_others() -> None:
    async def run() -> list[str]:
        works = Works()
        for number in range(10):
            works.add(f"a{number}")
        await works.until_begun(NUM_THREADS)
        await works.leave(*(f"a{number}" for number in range(9)))
        works.add("b0")
        assert works.begun == ["a0", "a1"], "their threads are still at work"
        for name in ("a0", "a1"):
            works.gates[name].set()
        await works.until_begun(4)
        for name in ("a9", "b0"):
            await works.end(name)
        works.pool.close()
        return works.begun

    begun = asyncio.run(run())
    assert sorted(begun) == ["a0", "a1", "a9", "b0"]


def test_a_work_that_fails_gives_its_thread_back() -> None:
    async def run() -> None:
        pool = WorkPool()
        for _ in range(3 * NUM_THREADS):
            with pytest.raises(ZeroDivisionError):
                await pool.run_for("a", 1.0, lambda: 1 // 0)
        pool.close()

    asyncio.run(run())


def test_small_works_are_done_one_in_a_round_of_the_event_loop_and_keys_take_turns() -> None:
    async def run() -> list[tuple[int, str]]:
        pool, done, number = WorkPool(lambda: float(len(done))), list[tuple[int, str]](), 0

        async def work(name: str) -> None:
            await pool.run_here(name[0], 1.0, lambda: done.append((number, name)))

        works = [asyncio.ensure_future(work(f"a{each}")) for each in range(50)]
        works += [asyncio.ensure_future(work(f"b{each}")) for each in range(3)]
        while not all(each.done() for each in works):
            await asyncio.sleep(0)
            number += 1
            assert number < 1000
        pool.close()
        return done

    done = asyncio.run(run())
    rounds = [number for number, _ in done]
    assert len(set(rounds)) == len(rounds) == 53
    assert [name for _, name in done][:7] == ["a0", "b0", "a1", "b1", "a2", "b2", "a3"]


@pytest.mark.parametrize(
    ("data", "count"),
    [
        (b'{"a": [1, 2], "b": {}}', 5),
        (b'["[[[{:", "\\"[[[", "\\\\", [], {}]', 3),
        (b'["unterminated [[[[', 1),
        (b'["\\"\\"\\"[[[\\', 1),
        (b"[]", 1),
    ],
)
def test_parts_are_counted_outside_of_strings(data: bytes, count: int) -> None:
    assert [has_more_parts(data, limit) for limit in (count - 1, count)] == [True, False]


def test_one_wrong_entry_is_enough_to_stop_at() -> None:
    wrong = [""] * 10_000
    for model, body in (
        (CompletionRequest, {"prompt": "x", "allowed_token_ids": wrong}),
        (CompletionRequest, {"prompt": "x", "bad_words": wrong}),
        (ChatRequest, {"messages": wrong}),
        (ResponseRequest, {"input": wrong}),
        (DetokenizeRequest, {"tokens": wrong}),
    ):
        with pytest.raises(ValidationError) as refused:
            model.model_validate(body)
        assert refused.value.error_count() == 1, body


def test_numbers_that_are_not_finite_are_named_in_small_bodies_and_refused_in_large_ones() -> None:
    for size, param in ((0, "temperature"), (70_000, None)):
        data = b'{"temperature": NaN, "prompt": "' + b"x" * size + b'"}'
        with pytest.raises(ApiError) as refused:
            parse_body(data, CompletionRequest, 100)
        assert (refused.value.status, refused.value.param) == (400, param)
