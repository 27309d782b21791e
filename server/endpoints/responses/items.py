"""Builds the items of a response part by part, and makes the stream's events. A plain reply keeps only the items.

Owns the order of events and their numbers; knows nothing of HTTP.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from itertools import starmap
from typing import Any

from server.endpoints.responses.calls import OpenCall, new_id
from server.endpoints.thoughts import signature_of
from server.parsing.parts import CallArguments, CallStart, Content, Part, Reasoning
from server.schemas.chat import TokenLogprob
from server.schemas.response_replies import (
    MessageItem,
    OutputItem,
    OutputText,
    ReasoningItem,
    ReasoningText,
    ResponseEvent,
    Status,
)
from server.schemas.response_tools import OfferedTools


class ResponseItems:
    """`add` parts, then `close`; `items` holds the items so far. offered: the tools that may be called;
    seals: reasoning has encrypted content."""

    def __init__(self, offered: OfferedTools, seals: bool = False) -> None:
        self.items: list[OutputItem] = []
        self._offered = offered
        self._seals = seals
        self._open: OutputItem | None = None
        self._call: OpenCall | None = None
        self._num_events = 0

    @property
    def is_in_message(self) -> bool:
        return self._open is not None and self._open["type"] == "message"

    def event(self, kind: str, **fields: Any) -> ResponseEvent:
        """An event with the next number."""
        event: ResponseEvent = {"type": f"response.{kind}", "sequence_number": self.next_number()}
        return event | fields  # type: ignore[return-value]

    def next_number(self) -> int:
        self._num_events += 1
        return self._num_events - 1

    def add(self, part: Part, logprobs: list[TokenLogprob]) -> Iterator[ResponseEvent]:
        """Add a part, and yield its events. logprobs: those of a content part's tokens."""
        match part:
            case Reasoning():
                item = self._open
                if item is None or item["type"] != "reasoning":
                    yield from self.close("completed")
                    item = yield from self._begin_reasoning()
                item["content"][0]["text"] += part.text
                yield self._inside("reasoning_text.delta", delta=part.text)
            case Content():
                message = self._open
                if message is None or message["type"] != "message":
                    yield from self.close("completed")
                    message = yield from self._begin_message()
                message["content"][0]["text"] += part.text
                message["content"][0]["logprobs"] += logprobs
                yield self._inside("output_text.delta", delta=part.text, logprobs=logprobs)
            case CallStart():
                yield from self.close("completed")
                self._call = OpenCall(part, self._offered)
                yield self._begin(self._call.item)
            case CallArguments():
                assert self._call is not None
                yield from starmap(self._inside_call, self._call.add(part.text))

    def close(self, status: Status) -> Iterator[ResponseEvent]:
        """End the item that is open, if one is."""
        item = self._open
        if item is None:
            return
        item["status"] = status
        match item["type"]:
            case "message":
                text = item["content"][0]
                yield self._inside("output_text.done", text=text["text"], logprobs=text["logprobs"])
                yield self._inside("content_part.done", part=text)
            case "reasoning":
                thought = item["content"][0]
                yield self._inside("reasoning_text.done", text=thought["text"])
                yield self._inside("content_part.done", part=thought)
                if self._seals:
                    item["encrypted_content"] = signature_of(thought["text"])
            case _:
                assert self._call is not None
                yield from starmap(self._inside_call, self._call.end())
        yield self.event("output_item.done", output_index=len(self.items) - 1, item=item)
        self._open = None

    def _begin_reasoning(self) -> Generator[ResponseEvent, None, ReasoningItem]:
        thought: ReasoningText = {"type": "reasoning_text", "text": ""}
        item: ReasoningItem = {
            "id": new_id("rs"),
            "type": "reasoning",
            "status": "in_progress",
            "summary": [],
            "content": [],
        }
        yield self._begin(item)
        item["content"].append(thought)
        yield self._inside("content_part.added", part=dict(thought))
        return item

    def _begin_message(self) -> Generator[ResponseEvent, None, MessageItem]:
        text: OutputText = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        item: MessageItem = {
            "id": new_id("msg"),
            "type": "message",
            "role": "assistant",
            "status": "in_progress",
            "content": [],
        }
        yield self._begin(item)
        item["content"].append(text)
        yield self._inside("content_part.added", part=dict(text))
        return item

    def _begin(self, item: OutputItem) -> ResponseEvent:
        self.items.append(item)
        self._open = item
        return self.event("output_item.added", output_index=len(self.items) - 1, item=item)

    def _inside(self, kind: str, **fields: Any) -> ResponseEvent:
        """An event about the open item's only content part."""
        return self._inside_call(kind, {"content_index": 0, **fields})

    def _inside_call(self, kind: str, fields: Mapping[str, Any]) -> ResponseEvent:
        """An event about the open item, where it is a call, which has no content parts."""
        assert self._open is not None
        return self.event(kind, item_id=self._open["id"], output_index=len(self.items) - 1, **fields)
