"""The parts of a reply, and the protocol of their parsers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Content:
    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """Call number `index` of the reply begins."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """The next piece of the JSON text of call `index`'s arguments."""

    index: int
    text: str


Part = Content | Reasoning | CallStart | CallArguments


class Parser(Protocol):
    """Turns text into parts; `flush` ends the reply. is_reasoning: the next text is reasoning. is_done: the reply may
    be stopped, because later text would be dropped."""

    @property
    def is_reasoning(self) -> bool: ...

    @property
    def is_done(self) -> bool: ...

    def push(self, text: str) -> list[Part]: ...

    def flush(self) -> list[Part]: ...


class PlainParser:
    """Passes all text on as content."""

    is_reasoning = False
    is_done = False

    def push(self, text: str) -> list[Part]:
        return [Content(text)] if text else []

    def flush(self) -> list[Part]:
        return []


class CallWriter:
    """Makes the parts of calls, and numbers the calls of one reply."""

    def __init__(self, make_id: Callable[[], str]) -> None:
        self._make_id = make_id
        self.num_calls = 0

    def start(self, name: str) -> CallStart:
        self.num_calls += 1
        return CallStart(self.num_calls - 1, self._make_id(), name)

    def arguments(self, text: str) -> CallArguments:
        return CallArguments(self.num_calls - 1, text)


def merged(parts: Iterable[Part]) -> tuple[Part, ...]:
    """The same parts, neighbours of one kind joined and empty ones dropped."""
    joined: list[Part] = []
    for part in parts:
        last = joined[-1] if joined else None
        if not isinstance(part, CallStart) and isinstance(last, type(part)):
            joined[-1] = replace(last, text=last.text + part.text)
        elif isinstance(part, CallStart) or part.text:
            joined.append(part)
    return tuple(joined)


def said(parts: Iterable[Part]) -> str:
    """The text of the content parts."""
    return "".join(part.text for part in parts if isinstance(part, Content))
