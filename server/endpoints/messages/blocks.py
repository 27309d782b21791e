"""Builds the content blocks of a message part by part, and makes the stream's events. A plain reply keeps only the
blocks.

Owns the order of events; knows nothing of HTTP.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from server.endpoints.thoughts import signature_of
from server.parsing.json_text import object_json
from server.parsing.parts import CallArguments, CallStart, Content, Part, Reasoning
from server.schemas.anthropic_replies import MessageEvent, ReplyBlock


class MessageBlocks:
    """`add` parts, then `close`; `content` holds the blocks so far.

    signature: of thinking blocks; shows_thoughts: whether these have their text. Where not, their signatures hold it.
    """

    def __init__(self, signature: str, shows_thoughts: bool) -> None:
        self.content: list[ReplyBlock] = []
        self.num_calls = 0
        self._signature = signature
        self._shows_thoughts = shows_thoughts
        self._open: ReplyBlock | None = None
        self._arguments = ""  # of the open call
        self._omitted = ""  # thoughts of the open block

    def add(self, part: Part) -> Iterator[MessageEvent]:
        """Add a part, and yield its events."""
        block = self._open
        match part:
            case Content():
                if block is None or block["type"] != "text":
                    block = {"type": "text", "text": ""}
                    yield from self._begin(block)
                block["text"] += part.text
                yield self._delta("text_delta", text=part.text)
            case Reasoning():
                if block is None or block["type"] != "thinking":
                    block = {"type": "thinking", "thinking": "", "signature": ""}
                    yield from self._begin(block)
                if self._shows_thoughts:
                    block["thinking"] += part.text
                    yield self._delta("thinking_delta", thinking=part.text)
                else:
                    self._omitted += part.text
            case CallStart():
                yield from self._begin({"type": "tool_use", "id": part.id, "name": part.name, "input": {}})
                self.num_calls, self._arguments = self.num_calls + 1, ""
            case CallArguments():
                self._arguments += part.text
                yield self._delta("input_json_delta", partial_json=part.text)

    def close(self) -> Iterator[MessageEvent]:
        """End the block that is open, if one is."""
        block = self._open
        if block is None:
            return
        if block["type"] == "thinking":
            block["signature"] = self._signature if self._shows_thoughts else signature_of(self._omitted)
            self._omitted = ""
            yield self._delta("signature_delta", signature=block["signature"])
        elif block["type"] == "tool_use":
            block["input"] = msgspec.Raw(object_json(self._arguments))
        yield {"type": "content_block_stop", "index": len(self.content) - 1}
        self._open = None

    def _begin(self, block: ReplyBlock) -> Iterator[MessageEvent]:
        yield from self.close()
        self.content.append(block)
        self._open = block
        yield {"type": "content_block_start", "index": len(self.content) - 1, "content_block": block}

    def _delta(self, kind: str, **fields: Any) -> MessageEvent:
        return {"type": "content_block_delta", "index": len(self.content) - 1, "delta": {"type": kind, **fields}}
