"""The parts of a reply, and what every parser of them is."""

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
    """The reply's call number `index` begins."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """More of the JSON text of call `index`'s arguments."""

    index: int
    text: str


Part = Content | Reasoning | CallStart | CallArguments


class Parser(Protocol):
    """is_reasoning: what comes next is thought, not said; is_done: no more is wanted, the reply may be stopped."""

    @property
    def is_reasoning(self) -> bool: ...

    @property
    def is_done(self) -> bool: ...

    def push(self, text: str) -> list[Part]: ...

    def flush(self) -> list[Part]: ...


class PlainParser:
    """Everything is content."""

    is_reasoning = False
    is_done = False

    def push(self, text: str) -> list[Part]:
        return [Content(text)] if text else []

    def flush(self) -> list[Part]:
        return []


class CallWriter:
    """Numbers the calls of one reply."""

    def __init__(self, make_id: Callable[[], str]) -> None:
        self._make_id = make_id
        self.num_calls = 0

    def start(self, name: str) -> CallStart:
        self.num_calls += 1
        return CallStart(self.num_calls - 1, self._make_id(), name)

    def arguments(self, text: str) -> CallArguments:
        return CallArguments(self.num_calls - 1, text)


def merged(parts: Iterable[Part]) -> tuple[Part, ...]:
    """The same parts with neighbours of one kind joined."""
    joined: list[Part] = []
    for part in parts:
        last = joined[-1] if joined else None
        if not isinstance(part, CallStart) and isinstance(last, type(part)):
            joined[-1] = replace(last, text=last.text + part.text)
        elif isinstance(part, CallStart) or part.text:
            joined.append(part)
    return tuple(joined)


def said(parts: Iterable[Part]) -> str:
    """The content alone."""
    return "".join(part.text for part in parts if isinstance(part, Content))
