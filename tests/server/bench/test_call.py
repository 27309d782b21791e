"""A call is read from the bytes of its stream, however they were cut."""

import pytest

from server.bench.call import Call
from tests.server.bench.streams import DONE, answered, chat_event, event, usage_event

ROLE = event(choices=[{"index": 0, "delta": {"role": "assistant", "content": ""}}], usage=None)
STREAM = ROLE + chat_event("one ") + b": keep-alive\n\n" + chat_event("two") + usage_event(7, 3, 4) + DONE


@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_a_stream_cut_anywhere_gives_its_text_and_usage(size: int) -> None:
    call = Call(number=0)
    for start in range(0, len(STREAM), size):
        call.feed(STREAM[start : start + size])
    call.finish(200)
    assert (call.content, call.error) == ("one two", None)
    assert (call.prompt_tokens, call.completion_tokens, call.cached_tokens) == (7, 3, 4)
    assert len(call.times) == 2, "an event without text is no token"


def test_completions_and_line_ends_of_other_servers_are_read_too() -> None:
    call = Call(number=0)
    call.feed((event(choices=[{"text": "a"}]) + usage_event(1, 1) + DONE).replace(b"\n", b"\r\n"))
    call.finish(200)
    assert (call.content, call.cached_tokens, call.error) == ("a", None, None)


def test_thoughts_are_events_but_not_what_a_conversation_goes_on_with() -> None:
    call = Call(number=0)
    call.feed(event(choices=[{"delta": {"reasoning_content": "hm"}}]) + chat_event("yes") + DONE)
    assert (len(call.times), call.content) == (2, "yes")


@pytest.mark.parametrize(
    ("status", "data", "error"),
    [
        (400, b'{"error": {"message": "too long"}}', "status 400: .*too long"),
        (200, chat_event("half"), "without .DONE."),
        (200, event(error={"message": "the engine died"}), "the engine died"),
    ],
)
def test_a_reply_that_is_not_whole_is_an_error(status: int, data: bytes, error: str) -> None:
    call = Call(number=0)
    call.feed(data)
    call.finish(status)
    assert call.error is not None
    with pytest.raises(AssertionError, match=error):
        raise AssertionError(call.error)


def test_times_are_those_of_the_field() -> None:
    call = answered([1.0, 1.5, 3.0], tokens=5)
    assert call.time_to_first_token == 1.0
    assert call.time_per_output_token == 0.5
    assert call.gaps == [0.5, 1.5]


def test_a_reply_of_one_token_has_no_time_per_output_token() -> None:
    assert answered([1.0], tokens=1).time_per_output_token is None
    assert answered([], tokens=1).time_to_first_token is None
