"""Writes the replies of /api/chat and /api/generate: the lines of a stream, and the reply in one piece.

A call comes whole, in a line of its own. The last line says nothing, and has the counts.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, ClassVar

import msgspec

from server.generation.call import GenerationCall
from server.generation.choice import ChoiceDelta, TokenNews
from server.generation.events import FoldedChoice, Prompts
from server.generation.logprobs import TokenNames, said_logprobs
from server.generation.usage import UsageCount
from server.http.errors import ApiError
from server.http.sse import LINES, StreamForm, line
from server.parsing.json_text import object_json
from server.parsing.parts import CallArguments, CallStart, Content, Part, Reasoning
from server.schemas.ollama.replies import Ended, ReplyCall, ReplyMessage


def timestamp(seconds: float | None = None) -> str:
    """A time in seconds since 1970, by default now, as RFC 3339 writes it."""
    when = datetime.now(UTC) if seconds is None else datetime.fromtimestamp(seconds, UTC)
    return when.isoformat().replace("+00:00", "Z")


@dataclass(slots=True)
class OllamaSerializer:
    """name: the model's, as the client wrote it; began: nanoseconds of the monotonic clock at which the request came;
    is_chat: whether the reply is a message, or a response."""

    form: ClassVar[StreamForm] = LINES

    call: GenerationCall
    name: str
    began: int
    is_chat: bool
    _open: tuple[CallStart, list[str]] | None = None  # the call that is being written, and its arguments
    _last: ChoiceDelta | None = field(default=None)

    def chunks(self, delta: ChoiceDelta, usage: UsageCount) -> Iterable[bytes]:  # noqa: ARG002
        self._last = delta
        said = self._messages(delta.parts, is_end=delta.finish_reason is not None)
        logprobs = self._logprobs(delta.news)
        for message in said or ([_message()] if logprobs else []):
            yield line(self._reply(message, logprobs))
            logprobs = None  # the first line of a delta has those of its tokens

    def silence(self, prompts: Prompts) -> bytes:  # noqa: ARG002
        """A line that says nothing: JSON has no comments."""
        return line(self._reply(_message(), None))

    def ending(self, outcome: UsageCount | ApiError) -> Iterable[bytes]:
        if isinstance(outcome, ApiError):
            yield line(outcome.ollama_body())
            return
        assert self._last is not None
        yield line(self._reply(_message(), None, self._ended(self._last, outcome)))

    def whole(self, choices: Sequence[FoldedChoice], usage: UsageCount) -> Mapping[str, object]:
        choice = choices[0]
        message = _message()
        for said in self._messages(choice.parts, is_end=True):
            message["content"] += said["content"]
            if "thinking" in said:
                message["thinking"] = message.get("thinking", "") + said["thinking"]
            if "tool_calls" in said:
                message["tool_calls"] = [*message.get("tool_calls", []), *said["tool_calls"]]
        return self._reply(message, self._logprobs(choice.news), self._ended(choice.last, usage))

    def _messages(self, parts: Sequence[Part], is_end: bool) -> list[ReplyMessage]:
        """A message for each part that is whole. is_end: no part follows."""
        said: list[ReplyMessage] = []
        for part in parts:
            match part:
                case CallArguments():
                    assert self._open is not None, part
                    self._open[1].append(part.text)
                    continue
                case _:
                    said += self._close_call()
            match part:
                case Content():
                    said.append(_message(part.text))
                case Reasoning():
                    said.append({"role": "assistant", "content": "", "thinking": part.text})
                case CallStart():
                    self._open = part, []
        return said + (self._close_call() if is_end else [])

    def _close_call(self) -> list[ReplyMessage]:
        """The message of the call that was open, if one was."""
        if self._open is None:
            return []
        start, pieces = self._open
        self._open = None
        arguments: Any = msgspec.Raw(object_json("".join(pieces)))
        call: ReplyCall = {
            "id": start.id,
            "function": {"index": start.index, "name": start.name, "arguments": arguments},
        }
        return [{"role": "assistant", "content": "", "tool_calls": [call]}]

    def _logprobs(self, news: Sequence[TokenNews]) -> list[Any] | None:
        """None where there are none, or none were asked for."""
        plan = self.call.plans[0]
        if plan.request.sampling.logprobs is None:
            return None
        return list(said_logprobs(TokenNames(self.call.tokenizer), news, plan)) or None

    def _reply(
        self, message: ReplyMessage, logprobs: list[Any] | None, ended: Ended | None = None
    ) -> Mapping[str, object]:
        reply: dict[str, object] = {"model": self.name, "created_at": timestamp()}
        if self.is_chat:
            reply["message"] = message
        else:
            reply["response"] = message["content"]
            if "thinking" in message:
                reply["thinking"] = message["thinking"]
        reply["done"] = ended is not None
        if logprobs is not None:
            reply["logprobs"] = logprobs
        return reply | (ended or {})

    def _ended(self, last: ChoiceDelta, usage: UsageCount) -> Ended:
        """Durations are 1 at least, since clients divide by them."""
        stats, counts = last.stats, usage.usage()
        assert stats is not None
        queued, first = stats.queue_seconds, stats.time_to_first_token
        return {
            "done_reason": "length" if last.finish_reason == "length" else "stop",
            "total_duration": time.monotonic_ns() - self.began,
            "load_duration": _nanoseconds(queued),
            "prompt_eval_count": counts["prompt_tokens"],
            "prompt_eval_duration": _nanoseconds(first - queued),
            "eval_count": counts["completion_tokens"],
            "eval_duration": _nanoseconds(stats.decode_seconds),
        }


def _message(content: str = "") -> ReplyMessage:
    return {"role": "assistant", "content": content}


def _nanoseconds(seconds: float) -> int:
    return max(round(seconds * 1e9), 1)
