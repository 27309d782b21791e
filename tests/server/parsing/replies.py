"""Reads replies in tests, in any pieces."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterable
from typing import Any

from server.parsing.parts import CallArguments, CallStart, Content, Parser, Part, merged
from server.parsing.reply_formats import ReplyFormats
from server.parsing.reply_parser import CallsWanted, ReplyParser
from tests.server.parsing.family_replies import TOOLS


def parser_of(
    calls_of: str = "hermes", thoughts_of: str = "none", open_thought: str = "", **wanted: Any
) -> ReplyParser:
    """wanted: fields of `CallsWanted` other than the usual ones."""
    fields: dict[str, Any] = {"schemas": TOOLS, "make_id": lambda _, number: f"id{number}"} | wanted
    return ReplyParser(ReplyFormats(calls_of, thoughts_of).of(""), CallsWanted(**fields), open_thought)


def read(pieces: Iterable[str], parser: Parser, is_cut: bool = False) -> tuple[Part, ...]:
    parts = [part for piece in pieces for part in parser.push(piece)]
    return merged([*parts, *parser.flush(is_cut)])


def check(text: str, expected: list[Part], *families: str, **wanted: Any) -> None:
    """The parts must be these however the text is cut into pieces. The rest is for `parser_of`."""
    for pieces in [[text], list(text), *_cuts(text)]:
        assert list(read(pieces, parser_of(*families, **wanted))) == expected, pieces


def _cuts(text: str) -> Iterable[list[str]]:
    rng = random.Random(text)
    for _ in range(20):
        places = sorted({0, len(text), *(rng.randrange(len(text) + 1) for _ in range(4))})
        yield [text[a:b] for a, b in itertools.pairwise(places)]


def called(parts: Iterable[Part]) -> list[tuple[str, Any]]:
    """The calls, with their arguments as values."""
    calls: list[tuple[str, str]] = []
    for part in parts:
        if isinstance(part, CallStart):
            calls.append((part.name, ""))
        elif isinstance(part, CallArguments):
            calls[-1] = (calls[-1][0], calls[-1][1] + part.text)
    return [(name, json.loads(text)) for name, text in calls]


def said(parts: Iterable[Part]) -> list[str]:
    return [part.text for part in parts if isinstance(part, Content)]


def call(index: int, name: str, arguments: str) -> list[Part]:
    return [CallStart(index, f"id{index}", name), CallArguments(index, arguments)]
