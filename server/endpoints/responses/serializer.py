"""Writes the replies of /v1/responses: the events of a stream, and the plain reply with the same items."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from decoding.core.stats import RequestStats
from server.endpoints.responses.items import ResponseItems
from server.generation.call import GenerationCall
from server.generation.choice import ChoiceDelta
from server.generation.events import FoldedChoice, Prompts, progress_comment
from server.generation.logprobs import TokenNames, said_logprobs
from server.generation.report import speculation_report
from server.generation.usage import UsageCount
from server.http.errors import ApiError
from server.http.sse import EVENTS, StreamForm, event_frame
from server.parsing.parts import Content
from server.schemas.chat import TokenLogprob
from server.schemas.response_replies import Response, ResponseEvent, ResponseUsage
from server.schemas.response_tools import OfferedTools
from server.schemas.responses import ResponseRequest, TextConfig
from server.schemas.tools import ToolChoice


@dataclass(slots=True)
class ResponseSerializer:
    form: ClassVar[StreamForm] = EVENTS
    call: GenerationCall
    body: ResponseRequest
    is_kept: bool
    keep: Callable[[Response], None]  # called with the complete response before the client gets its end
    _items: ResponseItems = field(init=False)
    _logprobs: list[TokenLogprob] = field(default_factory=list)  # of tokens whose content has not been shown
    _last: ChoiceDelta | None = None

    def __post_init__(self) -> None:
        self._items = ResponseItems(self.body.offered, self.body.wants_sealed)

    def chunks(self, delta: ChoiceDelta, usage: UsageCount) -> Iterable[bytes]:  # noqa: ARG002
        is_first, self._last = self._last is None, delta
        if is_first:
            yield event_frame(self._items.event("created", response=self._response("in_progress")))
            yield event_frame(self._items.event("in_progress", response=self._response("in_progress")))
        yield from map(event_frame, self._grow(delta))

    def silence(self, prompts: Prompts) -> bytes:
        return progress_comment(prompts)

    def ending(self, outcome: UsageCount | ApiError) -> Iterable[bytes]:
        if isinstance(outcome, ApiError):
            yield from map(event_frame, self._failure(outcome))
            return
        status = self._status()
        yield from map(event_frame, self._items.close(status))
        reply = self._response(status, outcome)
        self.keep(reply)
        yield event_frame(self._items.event(status, response=reply))

    def whole(self, choices: Sequence[FoldedChoice], usage: UsageCount) -> Mapping[str, object]:
        choice = choices[0]
        self._last = replace(choice.last, parts=choice.parts, news=choice.news)
        status = self._status()
        for _ in (*self._grow(self._last), *self._items.close(status)):
            pass  # only the items count
        reply = self._response(status, usage)
        self.keep(reply)
        return reply

    def _grow(self, delta: ChoiceDelta) -> Iterator[ResponseEvent]:
        names = TokenNames(self.call.tokenizer)
        if self.body.wants_logprobs:
            self._logprobs += said_logprobs(names, delta.news, self.call.plans[0])
        for part in delta.parts:
            logprobs: list[TokenLogprob] = []
            if isinstance(part, Content):
                logprobs, self._logprobs = self._logprobs, []
            yield from self._items.add(part, logprobs)
        is_last_of_message = self._items.is_in_message and bool(self._logprobs)
        if delta.finish_reason is not None and (is_last_of_message or not self._items.items):
            yield from self._items.add(Content(""), self._logprobs)

    def _failure(self, error: ApiError) -> Iterator[ResponseEvent]:
        detail = error.body()["error"]
        yield {
            "type": "error",
            "sequence_number": self._items.next_number(),
            "code": error.code,
            "message": detail["message"] or "",
            "param": error.param,
        }
        failed = self._response("failed")
        failed["error"] = {"code": error.code, "message": detail["message"] or ""}
        yield self._items.event("failed", response=failed)

    def _status(self) -> Any:
        assert self._last is not None
        return "incomplete" if self._last.finish_reason == "length" else "completed"

    def _response(self, status: Any, usage: UsageCount | None = None) -> Response:
        body, call = self.body, self.call
        response: Response = {
            "id": call.id,
            "object": "response",
            "created_at": call.created,
            "completed_at": int(time.time()) if status == "completed" else None,
            "status": status,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "model": call.model,
            "output": self._items.items,
            "usage": None if usage is None else _usage(usage),
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "metadata": body.metadata,
            "parallel_tool_calls": body.parallel_tool_calls,
            "previous_response_id": body.previous_response_id,
            "reasoning": {"effort": body.reasoning.effort, "summary": None},
            "store": self.is_kept,
            "background": False,
            "temperature": body.temperature,
            "top_p": body.top_p,
            "top_logprobs": body.top_logprobs or 0,
            "text": _text(body.text),
            "tool_choice": _tool_choice(body.chosen, body.offered),
            "tools": [tool.model_dump(exclude_none=True) for tool in body.tools],
            "truncation": body.truncation,
        }
        stats = None if self._last is None else self._last.stats
        return self._with_report(response, stats)

    def _with_report(self, response: Response, stats: RequestStats | None) -> Response:
        if self.body.speculation.report and stats is not None:
            response["speculation"] = speculation_report(stats)
        return response


def _tool_choice(choice: ToolChoice, offered: OfferedTools) -> str | dict[str, Any]:
    names = choice.allowed if choice.allowed is not None else (choice.name,) if choice.mode == "named" else ()
    found = [tool for name in names if (tool := offered.find(name)) is not None]
    tools = [{"type": tool.tool.type, **tool.place} for tool in found]
    if choice.mode == "named":
        return tools[0]
    if choice.allowed is not None:
        return {"type": "allowed_tools", "mode": choice.mode, "tools": tools}
    return choice.mode


def _text(config: TextConfig) -> dict[str, Any]:
    verbosity = {} if config.verbosity is None else {"verbosity": config.verbosity}
    form = config.format
    if form is None or form.definition is None:
        return {"format": {"type": "text" if form is None else form.type}, **verbosity}
    described = {"name": form.name or "schema", "description": form.description, "schema": form.definition}
    return {"format": {"type": form.type, **described, "strict": form.strict}, **verbosity}


def _usage(count: UsageCount) -> ResponseUsage:
    usage = count.usage()
    return {
        "input_tokens": usage["prompt_tokens"],
        "input_tokens_details": {
            "cached_tokens": usage["prompt_tokens_details"]["cached_tokens"],
            "cache_write_tokens": 0,
        },
        "output_tokens": usage["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": usage["completion_tokens_details"]["reasoning_tokens"]},
        "total_tokens": usage["total_tokens"],
    }
