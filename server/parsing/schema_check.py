"""Checks a JSON value against a client's schema, in bounded work."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

MOST_CHECKS = 10_000  # because a schema with alternatives in alternatives could take forever

# Keywords with regular expressions in them, or that read those of their neighbours.
LEFT_OUT = frozenset(
    {"pattern", "patternProperties", "additionalProperties", "unevaluatedProperties", "unevaluatedItems"}
)

Check = Callable[[Any, Any, Any, Any], Any]


def fits(value: Any, schema: Mapping[str, Any]) -> bool:
    """Whether the schema allows the JSON value. Regular expressions are not tried, nothing is fetched, and a check that
    takes too long, or a schema that is none, allows nothing."""
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
