"""Writes the replies of /v1/chat/completions: the chunks of a stream, and the plain reply.

A choice's first chunk has the role; its last chunk has the finish reason and no text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from decoding.core.stats import RequestStats
from server.engine_client.replies import PromptRun
from server.generation.call import GenerationCall
from server.generation.choice import ChoiceDelta, TokenNews
from server.generation.events import FoldedChoice, Prompts, progress_comment, prompt_progress
from server.generation.logprobs import TokenNames, prompt_logprobs, said_logprobs
from server.generation.report import speculation_report
from server.generation.trace import trace
from server.generation.usage import UsageCount
from server.http.errors import ApiError
from server.http.sse import DONE, EVENTS, StreamForm, frame
from server.parsing.parts import CallArguments, CallStart, Content, Part, Reasoning, said
from server.schemas.chat import (
    AssistantDelta,
    AssistantMessage,
    ChatChoice,
    ChatChunkChoice,
    ChatCompletion,
    ChatCompletionChunk,
    ChatLogprobs,
    ChatRequest,
    ToolCall,
)


@dataclass(slots=True)
class ChatSerializer:
    form: ClassVar[StreamForm] = EVENTS
    call: GenerationCall
    body: ChatRequest
    _begun: set[int] = field(default_factory=set)  # choices whose role was sent
    _calling: set[int] = field(default_factory=set)  # choices that have called a tool

    def chunks(self, delta: ChoiceDelta, usage: UsageCount) -> Iterable[bytes]:
        index = delta.index
        if index not in self._begun:
            self._begun.add(index)
            role: AssistantDelta = {"role": "assistant", "content": None if self._calls_first(delta) else ""}
            yield self._chunk(_chunk_choice(index, role), usage, is_first=True)
        if any(isinstance(part, CallStart) for part in delta.parts):
            self._calling.add(index)
        choices = [_chunk_choice(index, part_delta(part)) for part in delta.parts]
        logprobs = self._logprobs(index, delta.news)
        if not choices and self._has_news(delta, logprobs):
            choices.append(_chunk_choice(index, {}))
        if choices:  # the first chunk of a delta reports its tokens, and the others do not repeat them
            choices[0]["logprobs"] = logprobs
            self._add_token_ids(choices[0], delta)
            self._add_trace(choices[0], delta)
        for choice in choices:
            yield self._chunk(choice, usage)
        if delta.finish_reason is not None:
            last = _chunk_choice(index, {})
            last["finish_reason"] = finish_reason(delta.finish_reason, index in self._calling)
            self._add_report(last, delta.stats)
            yield self._chunk(last, usage)

    def silence(self, prompts: Prompts) -> bytes:
        if not (prompts and self.body.return_progress):
            return progress_comment(prompts)
        return b"".join(self._progress_chunk(index, run) for index, run in prompts.items())

    def ending(self, outcome: UsageCount | ApiError) -> Iterable[bytes]:
        if isinstance(outcome, ApiError):
            yield frame(outcome.body())
        elif self.body.stream_options.include_usage:
            yield frame(self._empty_chunk([]) | {"usage": outcome.usage()})
        yield DONE

    def whole(self, choices: Sequence[FoldedChoice], usage: UsageCount) -> Mapping[str, object]:
        reply: ChatCompletion = {
            "id": self.call.id,
            "object": "chat.completion",
            "created": self.call.created,
            "model": self.call.model,
            "system_fingerprint": self.call.fingerprint,
            "choices": [self._whole_choice(choice) for choice in choices],
            "usage": usage.usage(),
            "prompt_logprobs": None,
        }
        first = choices[0].prompt_logprobs
        if self.body.prompt_logprobs is not None and first is not None:
            reply["prompt_logprobs"] = prompt_logprobs(self.call.tokenizer, first)
        if self.body.return_token_ids:
            reply["prompt_token_ids"] = self.call.plans[0].request.prompt
        return reply

    def _whole_choice(self, choice: FoldedChoice) -> ChatChoice:
        message = message_of(choice.parts)
        reason = choice.last.finish_reason
        assert reason is not None
        whole: ChatChoice = {
            "index": choice.last.index,
            "message": message,
            "logprobs": self._logprobs(choice.last.index, choice.news),
            "finish_reason": finish_reason(reason, "tool_calls" in message),
        }
        self._add_token_ids(whole, choice)
        self._add_trace(whole, choice)
        self._add_report(whole, choice.last.stats)
        return whole

    def _calls_first(self, delta: ChoiceDelta) -> bool:
        """Whether the choice, of which this is the first delta, says nothing before a call."""
        if self.body.choice_of_tool.mode in ("required", "named"):
            return True
        return bool(delta.parts) and isinstance(delta.parts[0], CallStart)

    def _has_news(self, delta: ChoiceDelta, logprobs: ChatLogprobs | None) -> bool:
        """Whether a delta without parts has something to tell."""
        if self.body.speculation.trace and (delta.news or delta.steps):
            return True
        has_ids = self.body.return_token_ids and len(delta.token_ids) > 0
        return has_ids or (logprobs is not None and len(logprobs["content"]) > 0)

    def _logprobs(self, index: int, news: Sequence[TokenNews]) -> ChatLogprobs | None:
        if not self.body.logprobs:
            return None
        names = TokenNames(self.call.tokenizer, self.body.return_tokens_as_token_ids)
        content = said_logprobs(names, news, self.call.plans[index], self.body.return_token_ids)
        return {"content": content, "refusal": None}

    def _add_token_ids(self, choice: ChatChoice | ChatChunkChoice, news: ChoiceDelta | FoldedChoice) -> None:
        if self.body.return_token_ids:
            choice["token_ids"] = list(news.token_ids)

    def _add_report(self, choice: ChatChoice | ChatChunkChoice, stats: RequestStats | None) -> None:
        if self.body.speculation.report and stats is not None:
            choice["speculation"] = speculation_report(stats)

    def _add_trace(self, choice: ChatChoice | ChatChunkChoice, news: ChoiceDelta | FoldedChoice) -> None:
        if self.body.speculation.trace:
            choice["trace"] = trace(self.call.tokenizer, news.news, news.steps)

    def _chunk(self, choice: ChatChunkChoice, usage: UsageCount, is_first: bool = False) -> bytes:
        """is_first: whether the chunk is the first of its choice."""
        chunk = self._empty_chunk([choice])
        if is_first and self.body.return_token_ids:
            chunk["prompt_token_ids"] = self.call.plans[choice["index"]].request.prompt
        options = self.body.stream_options
        if options.include_usage:
            chunk["usage"] = usage.usage() if options.continuous_usage_stats else None
        return frame(chunk)

    def _progress_chunk(self, index: int, run: PromptRun) -> bytes:
        return frame(self._empty_chunk([_chunk_choice(index, {})]) | {"prompt_progress": prompt_progress(run)})

    def _empty_chunk(self, choices: list[ChatChunkChoice]) -> ChatCompletionChunk:
        return {
            "id": self.call.id,
            "object": "chat.completion.chunk",
            "created": self.call.created,
            "model": self.call.model,
            "system_fingerprint": self.call.fingerprint,
            "choices": choices,
        }


def finish_reason(reason: str, has_calls: bool) -> str:
    return "tool_calls" if reason == "stop" and has_calls else reason


def part_delta(part: Part) -> AssistantDelta:
    match part:
        case Content():
            return {"content": part.text}
        case Reasoning():
            return {"reasoning_content": part.text, "reasoning": part.text}
        case CallStart():
            function: Any = {"name": part.name, "arguments": ""}
            return {"tool_calls": [{"index": part.index, "id": part.id, "type": "function", "function": function}]}
        case CallArguments():
            return {"tool_calls": [{"index": part.index, "function": {"arguments": part.text}}]}


def message_of(parts: Sequence[Part]) -> AssistantMessage:
    """The message that the parts make. Its content is null where it only calls tools."""
    thought = "".join(part.text for part in parts if isinstance(part, Reasoning))
    calls = calls_of(parts)
    content = said(parts)
    message: AssistantMessage = {
        "role": "assistant",
        "content": None if calls and not content else content,
        "refusal": None,
    }
    if thought:
        message["reasoning_content"] = message["reasoning"] = thought
    if calls:
        message["tool_calls"] = calls
    return message


def calls_of(parts: Sequence[Part]) -> list[ToolCall]:
    calls: list[ToolCall] = []
    for part in parts:
        if isinstance(part, CallStart):
            calls.append({"id": part.id, "type": "function", "function": {"name": part.name, "arguments": ""}})
        elif isinstance(part, CallArguments):
            calls[part.index]["function"]["arguments"] += part.text
    return calls


def _chunk_choice(index: int, delta: AssistantDelta) -> ChatChunkChoice:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
