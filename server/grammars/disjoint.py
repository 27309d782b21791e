"""Proves that no value fits two JSON schemas, so that exactly one of them means any of them.

Knows nothing of how schemas are enforced. Invariant: what cannot be proved within bounded work counts as not
disjoint.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

from server.grammars.keywords import listed
from server.parsing.typed import target_of, type_of

MOST_LOOKS = 20_000  # at schemas, in one proof
MOST_TAGS = 16  # properties that are tried as the one that tells objects apart
MOST_DEPTH = 8  # of properties and alternatives that are compared within others
TYPES = {
    "null": {"null"},
    "boolean": {"boolean"},
    "integer": {"integer"},
    "number": {"integer", "fraction"},
    "string": {"string"},
    "array": {"array"},
    "object": {"object"},
}
ALL_TYPES = frozenset().union(*TYPES.values())

Facets = Sequence[Mapping[str, Any]]  # schemas that must all hold


def are_all_disjoint(root: Mapping[str, Any], schemas: Sequence[Any], beside: Mapping[str, Any]) -> bool:
    """Whether no value fits two of `schemas`. beside: what must hold as well, whichever of them a value fits."""
    proof = _Proof(root)
    if proof.are_told_apart([[schema, beside] for schema in schemas]):
        return True
    return all(proof.are_disjoint([one, beside], [other, beside]) for one, other in combinations(schemas, 2))


class _Proof:
    """root: what references point into."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._num_left = MOST_LOOKS

    def are_told_apart(self, options: Sequence[Sequence[Any]]) -> bool:
        """Whether there is a property that objects of every option must have, with other values in each: the usual
        case, in linear work."""
        facets = [self._facets(option) or () for option in options]
        if not facets or not all(_types(each) == {"object"} for each in facets):
            return False
        return any(self._is_tag(name, facets) for name in [*dict.fromkeys(_required(facets[0]))][:MOST_TAGS])

    def _is_tag(self, name: str, options: Sequence[Facets]) -> bool:
        found: set[Any] = set()
        for facets in options:
            wanted = self._facets([each["properties"][name] for each in facets if name in _named(each, "properties")])
            keys = {_key(value) for value in next(_values(wanted or ()), ())}
            if not keys or keys & found or name not in _required(facets):
                return False
            found |= keys
        return True

    def are_disjoint(self, one: Sequence[Any], other: Sequence[Any], depth: int = 0) -> bool:
        """Whether no value fits all of `one` and all of `other`."""
        left, right = self._facets(one), self._facets(other)
        if left is None or right is None:  # one of them fits nothing
            return True
        self._num_left -= len(left) + len(right)
        if self._num_left < 0 or depth > MOST_DEPTH:
            return False
        shared = _types(left) & _types(right)
        if not shared or _excludes_values(left, right) or _excludes_values(right, left):
            return True
        if shared == {"object"} and self._have_disjoint_property(left, right, depth):
            return True
        return self._is_split(left, right, depth) or self._is_split(right, left, depth)

    def _facets(self, schemas: Sequence[Any]) -> Facets | None:
        """The schemas with all that `$ref` and `allOf` add to them; None where one of them is false."""
        facets: list[Mapping[str, Any]] = []
        waiting, seen = list(schemas), set()
        while waiting:
            schema = waiting.pop()
            if schema is False:
                return None
            if isinstance(schema, dict) and id(schema) not in seen:
                seen.add(id(schema))
                facets.append(schema)
                waiting += [target_of(self._root, schema.get("$ref")), *listed(schema, "allOf")]
        return facets

    def _have_disjoint_property(self, left: Facets, right: Facets, depth: int) -> bool:
        """Whether a property that the objects must have cannot be what both sides want."""
        for name in {*_required(left), *_required(right)}:
            self._num_left -= len(left) + len(right)
            one, other = (
                [facet["properties"][name] for facet in side if name in _named(facet, "properties")]
                for side in (left, right)
            )
            if one and other and self.are_disjoint(one, other, depth + 1):
                return True
        return False

    def _is_split(self, left: Facets, right: Facets, depth: int) -> bool:
        """Whether the left side lists alternatives, none of which goes together with the right side."""
        return any(
            all(self.are_disjoint([option], right, depth + 1) for option in options)
            for facet in left
            for options in (listed(facet, "anyOf"), listed(facet, "oneOf"))
            if options
        )


def _excludes_values(left: Facets, right: Facets) -> bool:
    """Whether the left side lists its values, and the right side allows none of them."""
    values = next(_values(left), None)
    if values is None:
        return False
    types = _types(right)
    allowed = {_key(value) for value in values if _type_of(value) in types}
    for others in _values(right):
        allowed &= {_key(value) for value in others}
    return not allowed


def _required(facets: Facets) -> list[str]:
    return [name for facet in facets for name in listed(facet, "required") if isinstance(name, str)]


def _values(facets: Facets) -> Iterator[Sequence[Any]]:
    for facet in facets:
        if "const" in facet:
            yield [facet["const"]]
        if isinstance(facet.get("enum"), list):
            yield facet["enum"]


def _key(value: Any) -> tuple[bool, Any]:
    """Different for different scalars, and the same for all lists and for all objects."""
    return isinstance(value, bool), type(value) if isinstance(value, list | dict) else value


def _types(facets: Facets) -> frozenset[str]:
    types = ALL_TYPES
    for facet in facets:
        named = facet.get("type")
        names = [named] if isinstance(named, str) else named
        if isinstance(names, list):
            types &= {each for name in names if isinstance(name, str) for each in TYPES.get(name, ())}
    return types


def _type_of(value: Any) -> str:
    name = type_of(value)
    return name if name != "number" else "integer" if value.is_integer() else "fraction"


def _named(schema: Mapping[str, Any], keyword: str) -> Mapping[str, Any]:
    found = schema.get(keyword)
    return found if isinstance(found, dict) else {}
