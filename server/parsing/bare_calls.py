"""Reads calls that a model writes without its family's marks, as small models do: the whole reply is an object for each
call, bare or in a code fence. Each must name a function that was offered, with arguments that fit its schema.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from server.parsing.json_text import CallObject, loaded
from server.parsing.schema_check import fits
from server.parsing.tape import Tape, Wait

SEPARATORS = " \t\r\n,;[]"
FENCE = re.compile(r"`{1,3}[A-Za-z_]*")

Schemas = Mapping[str, Mapping[str, Any]]


def read_bare_calls(tape: Tape, schemas: Schemas, closings: Sequence[str]) -> Wait[list[tuple[str, str]]]:
    """The names and arguments of the calls, where nothing but calls comes until the reply's end; else none, as soon as
    that is known. closings: marks that may follow a call, though none opened it."""
    calls: list[tuple[str, str]] = []
    while letter := (yield from tape.skip(SEPARATORS)):
        if letter == "`":
            if not (yield from tape.matching(FENCE)).startswith("```"):
                return []
            continue
        if calls and (yield from tape.takes_any(closings)):
            continue
        names: list[str] = []
        pieces: list[str] = []

        def is_offered(name: str, names: list[str] = names) -> bool:
            names.append(name)
            return name in schemas

        call = CallObject(tape, is_offered, pieces.append, may_have_more=False)
        if letter != "{" or not (yield from call.read()) or not _are_arguments("".join(pieces), schemas[names[0]]):
            return []
        calls.append((names[0], "".join(pieces)))
    return calls


def _are_arguments(text: str, schema: Mapping[str, Any]) -> bool:
    value = loaded(text)
    return isinstance(value, dict) and fits(value, schema)
