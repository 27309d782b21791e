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
    that is known. closings: marks that may follow a call, though none opened it.

    Of a reply that was cut within a call, the call is the last one as far as it goes, once it has its name. What may be
    the beginning of another call is passed after whole ones.
    """
    calls: list[tuple[str, str]] = []
    while letter := (yield from tape.skip(SEPARATORS)):
        tape.lacks_text = False
        if letter == "`":
            is_right = (yield from tape.matching(FENCE)).startswith("```")
        elif letter == "{":
            is_right = yield from _object(tape, schemas, calls)
        else:
            is_right = bool(calls) and (yield from tape.takes_any(closings))
        if not is_right:
            if tape.is_cut_here and calls:
                tape.at = len(tape.text)
                return calls
            return []
    return calls


def _object(tape: Tape, schemas: Schemas, calls: list[tuple[str, str]]) -> Wait[bool]:
    """Whether a whole call comes next. It is added to the calls, and so is one that is cut after its name."""
    names: list[str] = []
    pieces: list[str] = []

    def is_offered(name: str) -> bool:
        names.append(name)
        return name in schemas

    call = CallObject(tape, is_offered, pieces.append, may_have_more=False)
    is_whole = (yield from call.read()) and _are_arguments("".join(pieces), schemas[names[0]])
    if is_whole or (call.is_named and tape.is_cut_here):
        calls.append((names[0], "".join(pieces)))
    return is_whole


def _are_arguments(text: str, schema: Mapping[str, Any]) -> bool:
    value = loaded(text)
    return isinstance(value, dict) and fits(value, schema)
