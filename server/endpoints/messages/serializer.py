"""Writes the replies of /v1/messages: the events of a stream, and the plain reply with the same blocks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from server.endpoints.messages.blocks import MessageBlocks
from server.generation.call import GenerationCall
from server.generation.choice import ChoiceDelta
from server.generation.events import FoldedChoice, Prompts
from server.generation.report import speculation_report
from server.generation.usage import UsageCount
from server.http.errors import ApiError
from server.http.sse import EVENTS, StreamForm, event_frame
from server.schemas.anthropic import MessageRequest
from server.schemas.anthropic_replies import MessageEvent, MessageReply, MessageUsage, ReplyBlock, StopReason
from server.schemas.replies import Usage

PING = event_frame({"type": "ping"})


@dataclass(slots=True)
class MessageSerializer:
    form: ClassVar[StreamForm] = EVENTS
    call: GenerationCall
    body: MessageRequest
    has_cache: bool  # whether the server keeps prefixes of prompts
    _blocks: MessageBlocks = field(init=False)
    _last: ChoiceDelta | None = None

    def __post_init__(self) -> None:
        self._blocks = MessageBlocks(self.call.id, self.body.thinking.display == "summarized")

    def chunks(self, delta: ChoiceDelta, usage: UsageCount) -> Iterable[bytes]:
        is_first, self._last = self._last is None, delta
        if is_first:
            begun = self._message([], _usage_at_the_beginning(usage))
            yield event_frame({"type": "message_start", "message": begun})
        for part in delta.parts:
            yield from map(event_frame, self._blocks.add(part))

    def silence(self, prompts: Prompts) -> bytes:  # noqa: ARG002
        return PING

    def ending(self, outcome: UsageCount | ApiError) -> Iterable[bytes]:
        if isinstance(outcome, ApiError):
            yield event_frame(outcome.message_body())
            return
        yield from map(event_frame, self._blocks.close())
        assert self._last is not None
        end: MessageEvent = {
            "type": "message_delta",
            "delta": {"stop_reason": self._stop_reason(self._last), "stop_sequence": self._last.stop_string},
            "usage": self._usage(outcome),
        }
        self._add_report(end, self._last)
        yield event_frame(end)
        yield event_frame({"type": "message_stop"})

    def whole(self, choices: Sequence[FoldedChoice], usage: UsageCount) -> Mapping[str, object]:
        choice = choices[0]
        for part in choice.parts:
            for _ in self._blocks.add(part):
                pass  # only the blocks count
        for _ in self._blocks.close():
            pass
        reply = self._message(self._blocks.content, self._usage(usage))
        reply["stop_reason"] = self._stop_reason(choice.last)
        reply["stop_sequence"] = choice.last.stop_string
        self._add_report(reply, choice.last)
        return reply

    def _message(self, content: list[ReplyBlock], usage: MessageUsage) -> MessageReply:
        return {
            "id": self.call.id,
            "type": "message",
            "role": "assistant",
            "model": self.call.model,
            "content": content,
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage,
        }

    def _stop_reason(self, last: ChoiceDelta) -> StopReason:
        if last.finish_reason == "length":
            return "max_tokens" if last.num_tokens >= self.body.max_tokens else "model_context_window_exceeded"
        if last.stop_string is not None:
            return "stop_sequence"
        return "tool_use" if self._blocks.num_calls else "end_turn"

    def _add_report(self, reply: MessageReply | MessageEvent, last: ChoiceDelta) -> None:
        if self.body.speculation.report and last.stats is not None:
            reply["speculation"] = speculation_report(last.stats)

    def _usage(self, count: UsageCount) -> MessageUsage:
        """What was run is created in the cache where the client marked something for it, and plain input elsewhere."""
        usage = count.usage()
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        run = usage["prompt_tokens"] - cached
        created = run if self.body.asks_to_cache and self.has_cache else 0
        return _message_usage(usage, run - created, created, cached)


def _usage_at_the_beginning(count: UsageCount) -> MessageUsage:
    """Of a stream that begins, where it is not known what the cache has."""
    usage = count.usage()
    return _message_usage(usage, usage["prompt_tokens"], 0, 0)


def _message_usage(usage: Usage, plain: int, created: int, cached: int) -> MessageUsage:
    return {
        "input_tokens": plain,
        "cache_creation_input_tokens": created,
        "cache_read_input_tokens": cached,
        "output_tokens": usage["completion_tokens"],
        "output_tokens_details": {"thinking_tokens": usage["completion_tokens_details"]["reasoning_tokens"]},
    }
