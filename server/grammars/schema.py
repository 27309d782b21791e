"""Writes a caller's JSON schema as llguidance can enforce it, or refuses it by a sentence that names the place.

llguidance refuses keywords that it does not enforce, also where they exclude nothing, proves few `oneOf`s, and keeps
numbers as 64-bit floats. Values (const, enum, default, examples) are never read as schemas.
Invariant: whatever fits the schema that is written fits the caller's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Set
from typing import Any
from urllib.parse import quote, unquote

from server.grammars.disjoint import are_all_disjoint
from server.grammars.keywords import (
    BY_NAME,
    COUNTS,
    DEFINITIONS,
    ENFORCED,
    KNOWN,
    LISTS,
    ONE,
    REFUSED,
    TYPES,
    counts_properties,
    excludes_nothing,
    has_exact_integers,
    is_anything,
    listed,
    write_bounds,
    write_property_names,
    write_unevaluated,
)
from server.http.errors import ApiError, invalid
from server.http.notices import tell
from server.parsing.typed import target_of

NAMES = "patternProperties"
MOST_PARTS = 64  # of a reference, that are looked at
BOUNDS = frozenset({"minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"})
LOOKS_AROUND = "must be a regular expression without look-around"
# In a pattern: an escape or a class, which are passed over, or what llguidance's regular expressions do not have.
LOOK_AROUND = re.compile(r"\\.|\[\^?\]?(?:[^\]\\]|\\(?:.|\Z))*+(?:\]|\Z)|(?P<found>\(\?<?[=!])", re.DOTALL)


def enforceable(
    schema: Mapping[str, Any], param: str, owner: str = "The schema", is_strict: bool = True
) -> dict[str, Any]:
    """The schema as llguidance takes it; the caller's is left as it is. Definitions that nothing refers to are left
    out. What cannot be enforced is refused, or where the caller is not strict about it left out, of which the client
    is told. owner: whose schema it is, for a refusal, which is an ApiError about `param`."""
    try:
        return _Writer(schema, param, owner, is_strict).write()
    except RecursionError:
        raise invalid(f"{owner} is nested too deep.", param, "invalid_schema") from None


class _Writer:
    """Writes one schema. A path is a JSON pointer into the caller's schema."""

    def __init__(self, root: Mapping[str, Any], param: str, owner: str, is_strict: bool) -> None:
        self._root = dict(root)
        self._is_strict = is_strict
        self._param = param
        self._owner = owner
        options = root.get("x-guidance")  # llguidance's own, by which a caller may have it ignore what it cannot do
        options = options if isinstance(options, dict) else {}
        self._is_lenient = options.get("lenient") is True
        self._may_coerce = self._is_lenient or options.get("coerce_one_of") is True
        self._references: list[dict[str, Any]] = []  # what was written with a $ref
        self._wanted: set[str] = set()  # the paths that references name, and those to what is around them
        self._queue: list[str] = []  # those of them at which it is still to be seen whether there is a definition
        self._wants_all = False
        self._unwritten: dict[str, tuple[Any, dict[str, Any], str]] = {}  # a definition, and where it is to be written
        self._moved: dict[str, list[str]] = {}  # what took the place of a path's last part
        self._written: dict[int, list[dict[str, Any]]] = {}  # by the id of the caller's schema
        self._needed: list[tuple[int, str]] = []  # such an id, and a property that its objects must have

    def write(self) -> dict[str, Any]:
        written = self._schema(self._root, "#")
        self._write_definitions()
        for place, name in self._needed:
            for each in self._written.get(place, ()):
                each["required"] = [*(other for other in each.get("required", ()) if other != name), name]
        for keyword in self._root.keys() - KNOWN:  # where strangers keep definitions, which are left as they are
            if _under("#", keyword) in self._wanted and isinstance(written, dict):
                written[keyword] = self._root[keyword]
        for each in self._references:
            each["$ref"] = self._new_reference(each["$ref"])
        return written if isinstance(written, dict) else {"enum": []}

    def _schema(self, schema: Any, path: str) -> Any:
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, dict):
            raise self._refusal(path, "must be an object or a boolean")
        written = {
            keyword: self._value(keyword, value, _under(path, keyword))
            for keyword, value in schema.items()
            if keyword in KNOWN  # to llguidance any other one is a constraint on values of all types
        }
        for keyword in [keyword for keyword in written if excludes_nothing(keyword, written)]:
            del written[keyword]
        if "$dynamicAnchor" in written:  # without a $dynamicRef, which is refused, an anchor like any other
            written.setdefault("$anchor", written.pop("$dynamicAnchor"))
        if "not" in written and is_anything(written["not"]):
            return False
        if "propertyNames" in written:
            write_property_names(written, self._resolved(written["propertyNames"]))
        write_unevaluated(written)
        if not write_bounds(written):
            self._leave_out(written, BOUNDS, path, "has a bound beyond the integers of 64 bits")
        if "oneOf" in written and not self._may_coerce:
            written = self._with_any_of(schema, written, path)
        self._check(written, path)
        self._leave_out_what_is_not_enforced(written, path)
        self._written.setdefault(id(schema), []).append(written)
        if isinstance(written.get("$ref"), str):
            self._refer(written)
        return written

    def _value(self, keyword: str, value: Any, path: str) -> Any:
        if keyword in DEFINITIONS:
            written: dict[str, Any] = {}
            self._unwritten |= {
                _under(path, name): (each, written, name) for name, each in self._object(value, path).items()
            }
            return written
        if keyword in BY_NAME:
            return {name: self._schema(each, _under(path, name)) for name, each in self._object(value, path).items()}
        if keyword in LISTS or (keyword == "items" and isinstance(value, list)):
            if not isinstance(value, list):
                raise self._refusal(path, "must be a list of schemas")
            return [self._schema(each, f"{path}/{place}") for place, each in enumerate(value)]
        if keyword in ONE:
            return self._schema(value, path)
        if keyword in ("const", "enum") and not has_exact_integers(value):
            raise self._refusal(path, "has an integer that is too large for a grammar to keep it exactly")
        return value

    def _check(self, written: dict[str, Any], path: str) -> None:
        """Raises ApiError for what is no schema, which llguidance would refuse without saying where."""
        named = written.get("type", [])
        for name in named if isinstance(named, list) else [named]:
            if not isinstance(name, str) or name not in TYPES:
                raise self._refusal(_under(path, "type"), f"is none of {', '.join(sorted(TYPES))}")
        for keyword, kind in (("required", str), ("enum", object)):
            value = written.get(keyword, [])
            if not isinstance(value, list) or not all(isinstance(each, kind) for each in value):
                raise self._refusal(_under(path, keyword), "must be a list" + " of names" * (kind is str))
        for keyword in COUNTS & written.keys():
            if type(written[keyword]) is not int or written[keyword] < 0:
                raise self._refusal(_under(path, keyword), "must be a whole number")
        if not isinstance(written.get("pattern", ""), str):
            raise self._refusal(_under(path, "pattern"), "must be a regular expression without look-around")

    def _leave_out_what_is_not_enforced(self, written: dict[str, Any], path: str) -> None:
        """Take out what llguidance does not enforce, which leaves a looser schema. Raises ApiError where the caller is
        strict."""
        if not self._is_lenient:
            for keyword in sorted(REFUSED & written.keys()):
                self._leave_out(written, {keyword}, _under(path, keyword), "cannot be enforced by a grammar")
            if not counts_properties(written):
                counted = "counts properties of which some are optional, which a grammar cannot do"
                self._leave_out(written, {"minProperties", "maxProperties"}, path, counted)
        if _looks_around(written.get("pattern", "")):
            self._leave_out(written, {"pattern"}, _under(path, "pattern"), LOOKS_AROUND)
        if found := [name for name in written.get(NAMES, ()) if _looks_around(name)]:
            # Without one pattern all of them go, and what is said of other names: it would forbid those of that one.
            others = {NAMES, "additionalProperties"}
            self._leave_out(written, others, _under(_under(path, NAMES), found[0]), LOOKS_AROUND)

    def _leave_out(self, written: dict[str, Any], keywords: Set[str], path: str, why: str) -> None:
        if self._is_strict:
            raise self._refusal(path, why)
        tell(f"{self._owner} is not strict: {path} {why}, and does not hold the model.")
        for keyword in keywords & written.keys():
            del written[keyword]

    def _with_any_of(self, schema: dict[str, Any], written: dict[str, Any], path: str) -> dict[str, Any]:
        """What is written, with `anyOf` for `oneOf`. Raises ApiError unless its schemas exclude each other."""
        options = written["oneOf"]
        beside = {keyword: value for keyword, value in schema.items() if keyword != "oneOf"}
        discriminator = schema.get("discriminator")  # OpenAPI's: a property that all objects must have
        name = discriminator.get("propertyName") if isinstance(discriminator, dict) else None
        if isinstance(name, str):
            beside["required"] = [*listed(written, "required"), name]
            self._needed += [(id(self._resolved(each)), name) for each in schema["oneOf"]]
        alone = _single_names(schema["oneOf"]) if schema.get("type") == "object" else None
        if alone is not None:
            options = [{"required": [name], "properties": dict.fromkeys(set(alone) - {name}, False)} for name in alone]
        elif not are_all_disjoint(self._root, schema["oneOf"], beside):
            place = _under(path, "oneOf")
            self._leave_out({}, set(), place, "has schemas that may not exclude each other; anyOf would be enforced")
        if "anyOf" not in written:
            self._moved[_under(path, "oneOf")] = ["anyOf"]
            return {
                ("anyOf" if key == "oneOf" else key): options if key == "oneOf" else written[key] for key in written
            }
        others = written.get("allOf", [])
        self._moved[_under(path, "oneOf")] = ["allOf", str(len(others)), "anyOf"]
        del written["oneOf"]
        return written | {"allOf": [*others, {"anyOf": options}]}

    def _resolved(self, schema: Any) -> Any:
        return target_of(self._root, schema["$ref"]) if isinstance(schema, dict) and "$ref" in schema else schema

    def _write_definitions(self) -> None:
        """Write the definitions that are referred to, also by others that are."""
        while self._queue or (self._wants_all and self._unwritten):
            place = self._queue.pop() if self._queue else next(iter(self._unwritten))
            if place in self._unwritten:
                schema, written, name = self._unwritten.pop(place)
                written[name] = self._schema(schema, place)

    def _refer(self, written: dict[str, Any]) -> None:
        self._references.append(written)
        parts = unquote(written["$ref"]).split("/")[:MOST_PARTS]
        self._wants_all |= parts[0] != "#"  # an anchor or a name, which may be anywhere
        paths = ["/".join(parts[:length]) for length in range(len(parts), 1, -1)]
        self._queue += [path for path in paths if path not in self._wanted]
        self._wanted.update(paths)

    def _new_reference(self, reference: str) -> str:
        """The reference, led to where that was written which it points at."""
        old, *parts = unquote(reference).split("/")
        if old != "#" or not self._moved:
            return reference
        new = [old]
        for part in parts[:MOST_PARTS]:
            old = f"{old}/{part}"
            new += self._moved.get(old, [part])
        return quote("/".join([*new, *parts[MOST_PARTS:]]), safe="/#~!$&'()*+,;=:@?")

    def _object(self, value: Any, path: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise self._refusal(path, "must be an object")
        return value

    def _refusal(self, path: str, what: str) -> ApiError:
        return invalid(f"{self._owner}: {path} {what}.", self._param, "invalid_schema")


def _looks_around(pattern: str) -> bool:
    return any(match["found"] for match in LOOK_AROUND.finditer(pattern))


def _single_names(options: list[Any]) -> list[str] | None:
    """The names, where each of the schemas asks for one property of its own and for nothing else."""
    names = []
    for option in options:
        required = option.get("required") if isinstance(option, dict) else None
        if not isinstance(required, list) or len(required) != 1 or not isinstance(required[0], str):
            return None
        if (ENFORCED | REFUSED) & option.keys() - {"required", "type"} or option.get("type", "object") != "object":
            return None
        names += required
    return names if len(set(names)) == len(names) else None


def _under(path: str, name: str) -> str:
    return f"{path}/{name.replace('~', '~0').replace('/', '~1')}"
