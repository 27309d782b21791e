"""Reads calls that a model writes without its family's marks, as small models do: the whole reply is an object for each
call, bare or in a code fence. Each must name a function that was offered, with arguments that fit its schema.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from server.parsing.json_text import CallObject, loaded
from server.parsing.tape import Tape, Wait

SEPARATORS = " \t\r\n,;[]"
FENCE = re.compile(r"`{1,3}[A-Za-z_]*")
MOST_CHECKS = 10_000  # because a schema with alternatives in alternatives could take forever

# Keywords with regular expressions in them, or that read those of their neighbours.
LEFT_OUT = frozenset(
    {"pattern", "patternProperties", "additionalProperties", "unevaluatedProperties", "unevaluatedItems"}
)

Check = Callable[[Any, Any, Any, Any], Any]
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
    is_whole = (yield from call.read()) and fits("".join(pieces), schemas[names[0]])
    if is_whole or (call.is_named and tape.is_cut_here):
        calls.append((names[0], "".join(pieces)))
    return is_whole


def fits(arguments: str, schema: Mapping[str, Any]) -> bool:
    """Whether the JSON text is an object that the schema allows. The schema is a client's: its regular expressions are
    not tried, nothing is fetched for it, and a check that takes too long, or a schema that is none, allows nothing."""
    value = loaded(arguments)
    if not isinstance(value, dict):
        return False
    from jsonschema import Draft202012Validator, validators  # imported late, because most replies need none of it
    from jsonschema.exceptions import UnknownType
    from referencing import Registry
    from referencing.exceptions import Unresolvable

    left = iter(range(MOST_CHECKS))

    def bounded(check: Check) -> Check:
        def run(validator: Any, wanted: Any, instance: Any, schema: Any) -> Any:
            if next(left, None) is None:
                raise _TooLong
            return check(validator, wanted, instance, schema)

        return run

    checks = {name: bounded(check) for name, check in Draft202012Validator.VALIDATORS.items() if name not in LEFT_OUT}
    make: Any = validators.create(
        Draft202012Validator.META_SCHEMA, checks, type_checker=Draft202012Validator.TYPE_CHECKER
    )
    try:
        return next(make(schema, registry=Registry()).iter_errors(value), None) is None
    except (_TooLong, Unresolvable, UnknownType, RecursionError, TypeError, ValueError, AttributeError):
        return False


class _TooLong(Exception):
    """A value was checked against too many schemas."""
