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
    be stopped, because later text would be dropped. num_held: characters at the text's end that no part has yet.
    is_cut: the reply was to go on, so that the beginning of a call is no text."""

    @property
    def is_reasoning(self) -> bool: ...

    @property
    def is_done(self) -> bool: ...

    @property
    def num_held(self) -> int: ...

    def push(self, text: str) -> list[Part]: ...

    def flush(self, is_cut: bool = False) -> list[Part]: ...


class PlainParser:
    """Passes all text on as content."""

    is_reasoning = False
    is_done = False
    num_held = 0

    def push(self, text: str) -> list[Part]:
        return [Content(text)] if text else []

    def flush(self, is_cut: bool = False) -> list[Part]:  # noqa: ARG002
        return []


class CallWriter:
    """Makes the parts of calls, and numbers the calls of one reply. make_id: of a call's name and number; max_calls:
    how many are wanted, None for any number."""

    def __init__(self, make_id: Callable[[str, int], str], max_calls: int | None, parts: list[Part]) -> None:
        self._make_id = make_id
        self._max_calls = max_calls
        self._parts = parts
        self.num_calls = 0

    @property
    def is_full(self) -> bool:
        return self._max_calls is not None and self.num_calls >= self._max_calls

    def start(self, name: str) -> None:
        self._parts.append(CallStart(self.num_calls, self._make_id(name, self.num_calls), name))
        self.num_calls += 1

    def show(self, text: str) -> None:
        self._parts.append(CallArguments(self.num_calls - 1, text))


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
