"""What a request of /v1/messages may ask about the conversation before it: only what changes nothing. Pure.

This server shows a model the whole conversation, which each request brings.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from server.http.errors import ApiError, invalid
from server.schemas.anthropic import CountRequest, MessageRequest

# Anthropic's defaults, where an edit does not say when it begins and what it keeps.
CLEARS_TOOLS_FROM = {"type": "input_tokens", "value": 100_000}
KEPT_TOOL_USES = {"type": "tool_uses", "value": 3}
KEPT_THOUGHTS = {"type": "thinking_turns", "value": 1}
COMPACTS_FROM = {"type": "input_tokens", "value": 150_000}


def require_whole_conversation(body: MessageRequest) -> None:
    """Raises ApiError where the request continues a conversation that the server should have kept."""
    if body.thread is not None and body.thread.type == "continue":
        message = "thread: this server keeps no conversations; send the whole one, without thread or with type create."
        raise ApiError(404, message, "thread", "thread_not_found", details={"error_code": "thread_not_found"})


def require_nothing_cleared(body: CountRequest, num_tokens: int) -> None:
    """Raises ApiError where `context_management` would change the conversation, whose prompt has `num_tokens`."""
    blocks = [(message, block) for message in body.messages for block in message.content]
    counts = {
        "input_tokens": num_tokens,
        "tool_uses": sum(block.type == "tool_use" for _, block in blocks),
        "thinking_turns": len({id(message) for message, block in blocks if block.thinking is not None}),
    }
    for edit in body.context_management.edits:
        if not _changes_nothing(edit, counts):
            message = "context_management: this server clears nothing; leave out the edits that would."
            raise invalid(message, "context_management", "unsupported_parameter")


def _changes_nothing(edit: Mapping[str, Any], counts: Mapping[str, int]) -> bool:
    match edit.get("type"):
        case "clear_thinking_20251015":
            keep = edit.get("keep", KEPT_THOUGHTS)
            return keep in ("all", {"type": "all"}) or _is_within(counts, keep)
        case "clear_tool_uses_20250919":
            keep, trigger = edit.get("keep", KEPT_TOOL_USES), edit.get("trigger", CLEARS_TOOLS_FROM)
            return _is_within(counts, keep) or _is_within(counts, trigger)
        case "compact_20260112":
            return _is_within(counts, edit.get("trigger") or COMPACTS_FROM)
        case _:
            return False


def _is_within(counts: Mapping[str, int], bound: Any) -> bool:
    """Whether the conversation has no more of what `bound` counts than that allows."""
    kind, value = (bound.get("type"), bound.get("value")) if isinstance(bound, Mapping) else (None, None)
    return isinstance(kind, str) and kind in counts and isinstance(value, int) and counts[kind] <= value
