"""A minute of everything at once: every request has one end, every reply is the one it always is, no block is lost."""

from __future__ import annotations

import pytest

from deploy.soak import main
from deploy.soaking.bodies import COMPLETIONS, Ask
from deploy.soaking.chaos import SETTLING, SHORTEST, slope
from deploy.soaking.ends import FAULT, REFUSED, UNAVAILABLE, WHOLE, Reply, end_of

DONE = b"data: [DONE]\n\n"
ASKED = Ask(COMPLETIONS, b"{}", frozenset({"invalid_value"}))


def event(text: str, reason: str = "null") -> bytes:
    return b'data: {"choices": [{"text": "%s", "finish_reason": %s}]}\n\n' % (text.encode(), reason.encode())


def error(code: str) -> bytes:
    return b'data: {"error": {"code": "%s", "message": "told"}}\n\n' % code.encode()


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b": alive\n\n" + event("a") + event("b", '"stop"') + DONE, WHOLE),
        (event("a") + error("invalid_value") + DONE, REFUSED),
        (event("a") + error("engine_restarting") + DONE, UNAVAILABLE),
        (event("a") + error("worker_died") + DONE, FAULT),
        (event("a") + DONE, FAULT),
        (event("a", '"stop"') + event("b", '"stop"') + DONE, FAULT),
        (event("a", '"stop"') + error("invalid_value") + DONE, FAULT),
    ],
)
def test_an_end_is_told_by_what_a_client_sees(data: bytes, kind: str) -> None:
    end = end_of(ASKED, Reply(200, data))
    assert end.kind == kind
    assert (end.text == "ab") == (kind == WHOLE)


@pytest.mark.parametrize(
    "data", [event("a", '"stop"'), DONE + event("a"), event("a") + DONE + DONE, b"data: {\n\n" + DONE]
)
def test_a_stream_that_does_not_end_as_streams_do_is_none(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"DONE|Expecting"):
        end_of(ASKED, Reply(200, data))


def test_memory_is_judged_once_it_has_settled() -> None:
    settling = [(float(second), 500.0 + second) for second in range(int(SETTLING))]
    growing = [(SETTLING + second, 600.0 + 2.0 * second / 60.0) for second in range(241)]
    assert slope([*settling, *growing]) == pytest.approx((2.0, 4.0))
    assert slope(settling) is None
    assert slope([(0.0, 500.0), *growing[: int(SHORTEST)]]) is None


@pytest.mark.slow
def test_a_minute_of_everything_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    status = main(["--seconds", "35", "--clients", "64", "--pause", "6"])
    told = capsys.readouterr().out
    assert status == 0, told
    assert "| faults | 0 |" in told
    assert "| slots left held | 0 |" in told
    assert "serves again | none" not in told, "the worker was not killed"
