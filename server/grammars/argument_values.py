"""Writes the grammar of arguments in formats of calls that are not JSON as a whole.

There are three: raw text up to a mark, Python's keyword arguments, and objects whose keys have no quotes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from server.grammars.lark_rules import LarkRules, escaped, expression, quoted
from server.grammars.schema_parts import Parts, Properties, SchemaParts, conjunction, types_of, values_of
from server.parsing.reply_format import CallForm

COMMA = ' "," '
KEY = "/[A-Za-z0-9_.$-]+/"
PYTHON = {"true": "True", "false": "False", "null": "None"}  # by JSON's names
TOKEN = re.compile(
    r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|.", re.DOTALL
)  # of a regular expression: an escape, a class, a letter
LETTERS = {"\\d": "0-9", "\\w": "0-9A-Za-z_"}  # in JSON schemas these are ASCII's


class ArgumentValues:
    """Of one tool. parts: its schema."""

    def __init__(self, rules: LarkRules, form: CallForm, parts: SchemaParts) -> None:
        self._rules = rules
        self._form = form
        self._parts = parts
        self._loose: dict[str, str] = {}  # names of rules, by schema

    def whole(self, schema: Any) -> str:
        """A JSON object."""
        return self._rules.json(schema)

    def parameters(self, schema: Any) -> str:
        """Arguments that are each between marks."""
        before, _, middle, _, after = (piece.text for piece in self._form.parameter_pieces)
        bodies = []
        for object_ in self._objects(schema):
            body = []
            for name, each in object_.schemas.items():
                value = self._raw(each, after)
                argument = self._rules.rule(
                    f"{self._rules.mark(before)} {quoted(name)} {self._rules.mark(middle)} {value}"
                )
                body.append(argument if name in object_.required else f"{argument}?")
            if object_.others is not False:
                key = self._other_key(object_.schemas)
                value = self._raw(object_.others, after)
                argument = self._rules.rule(f"{self._rules.mark(before)} {key} {self._rules.mark(middle)} {value}")
                body.append(f"{argument}*")
            bodies.append(" ".join(body) or '""')
        return self._one_of(bodies)

    def keywords(self, schema: Any) -> str:
        """Python's keyword arguments."""
        return self._one_of(self._members(each, "=", ", ", self._python) for each in self._objects(schema))

    def loose(self, schema: Any) -> str:
        """A value as JSON, but with marks instead of quotes around strings, and none around keys."""
        key = json.dumps(schema)
        if key not in self._loose:
            self._loose[key] = self._rules.reserved()
            bodies = [body for parts in self._parts.alternatives(schema) for body in self._loose_bodies(parts)]
            self._rules.define(self._loose[key], " | ".join(bodies) or self._nothing())
        return self._loose[key]

    def _objects(self, schema: Any) -> list[Properties]:
        found = [parts for parts in self._parts.alternatives(schema) if "object" in types_of(parts)]
        return [each for parts in found if (each := self._parts.properties(parts)) is not None]

    def _members(self, object_: Properties, colon: str, comma: str, value: Callable[[Any], str]) -> str:
        """An object's members in the order of its schema, with commas between them."""
        rules, comma = self._rules, quoted(comma)
        members = [
            (rules.rule(f"{quoted(name)} {quoted(colon)} {value(each)}"), name in object_.required)
            for name, each in object_.schemas.items()
        ]
        first = further = ""  # from here on: where no member has come, and after one
        if object_.others is not False:
            other = rules.rule(f"{self._other_key(object_.schemas)} {quoted(colon)} {value(object_.others)}")
            first, further = f"({other} ({comma} {other})*)?", f"({comma} {other})*"
        for member, is_required in reversed(members):
            begins = f"{member} {further}"
            first = rules.rule(begins if is_required else f"{begins} | {first}" if first else f"({begins})?")
            further = rules.rule(f"{comma} {begins}" if is_required else f"({comma} {member})? {further}")
        return first or '""'

    def _other_key(self, names: Iterable[str]) -> str:
        known = "|".join(map(escaped, names))
        return self._rules.terminal(f"{KEY} & ~/({known})/" if known else KEY)

    def _raw(self, schema: Any, mark: str) -> str:
        """Text up to the mark: JSON where it is no string."""
        bodies = []
        for parts in self._parts.alternatives(schema):
            types = types_of(parts)
            values = values_of(parts)
            if values is not None:
                texts = [value if isinstance(value, str) else _json(value) for value in values]
                bodies += [self._rules.text_to(mark, [f"({' | '.join(map(quoted, texts))})"])] if texts else []
                continue
            if "string" in types:
                contents, length = _patterns(parts), _length(parts)
                if not contents and not length:
                    return self._rules.text_to(mark)
                bodies.append(self._rules.text_to(mark, contents, length))
            bodies += [f"{each} {self._rules.mark(mark)}" for each in self._json_of(parts, set(types) - {"string"})]
        return self._one_of(bodies)

    def _python(self, schema: Any) -> str:
        bodies = []
        for parts in self._parts.alternatives(schema):
            types, values = set(types_of(parts)), values_of(parts)
            if values is not None:
                bodies += [quoted(PYTHON.get(text, text)) for text in map(_json, values)]
                continue
            bodies += ['("True" | "False")'] if "boolean" in types else []
            bodies += ['"None"'] if "null" in types else []
            bodies += self._json_of(parts, types - {"boolean", "null"})
        return self._one_of(bodies)

    def _loose_bodies(self, parts: Parts) -> Iterable[str]:
        rules, types, values = self._rules, set(types_of(parts)), values_of(parts)
        if values is not None:
            yield from (self._loose_value(value) for value in values)
            return
        if "string" in types:
            mark = self._form.strings
            yield f"{rules.mark(mark)} {rules.text_to(mark, _patterns(parts), _length(parts))}"
        if "array" in types:
            yield from self._array(parts)
        if "object" in types:
            object_ = self._parts.properties(parts)
            if object_ is not None:
                yield f'"{{" {self._members(object_, ":", ",", self.loose)} "}}"'
        yield from self._json_of(parts, types - {"string", "array", "object"})

    def _array(self, parts: Parts) -> Iterable[str]:
        if any("prefixItems" in part for part in parts):
            self._parts.refuse("has prefixItems")
        item = conjunction([part["items"] for part in parts if part.get("items", True) is not True])
        least = max((part.get("minItems", 0) for part in parts), default=0)
        most = min((part["maxItems"] for part in parts if "maxItems" in part), default=None)
        if least == 0:
            yield '"[" "]"'
        if most is None or most >= max(least, 1):
            count = "*" if most is None and least < 2 else f"{{{max(least - 1, 0)},{'' if most is None else most - 1}}}"
            value = self.loose(item)
            yield f'"[" {value} ("," {value}){count} "]"'

    def _loose_value(self, value: Any) -> str:
        if isinstance(value, str):
            mark = self._rules.mark(self._form.strings)
            return " ".join(filter(None, (mark, quoted(value) if value else "", mark)))
        if isinstance(value, list):
            items = COMMA.join(map(self._loose_value, value))
            return f'"[" {items} "]"'
        if isinstance(value, dict):
            members = COMMA.join(f'{quoted(name)} ":" {self._loose_value(each)}' for name, each in value.items())
            return f'"{{" {members} "}}"'
        return quoted(_json(value))

    def _json_of(self, parts: Parts, types: set[str]) -> list[str]:
        """A value of one of these types as JSON; nothing where there are none."""
        if not types:
            return []
        named = {"type": sorted(types - ({"integer"} if "number" in types else set()))}
        schemas = [*parts, named] if set(types_of(parts)) != types or not parts else parts
        merged = {**parts[0], **named} if len(parts) == 1 else conjunction(schemas)
        return [self._rules.json(self._parts.alone(merged))]

    def _one_of(self, bodies: Iterable[str]) -> str:
        each = list(dict.fromkeys(bodies))
        return (each[0] if len(each) == 1 else self._rules.rule(" | ".join(each))) if each else self._nothing()

    def _nothing(self) -> str:
        self._parts.refuse("has a part that no value fits")
        return ""


def _patterns(parts: Parts) -> list[str]:
    """Terminals, all of which a string of this schema is."""
    return [expression(search_expression(part["pattern"])) for part in parts if "pattern" in part]


def _length(parts: Parts) -> str:
    """How many characters a string of this schema has, as a regular expression says it; "" for any number."""
    least = max((part["minLength"] for part in parts if "minLength" in part), default=0)
    most = min((part["maxLength"] for part in parts if "maxLength" in part), default="")
    return f"{{{least},{most}}}" if least or most != "" else ""


def search_expression(pattern: str) -> str:
    """A regular expression of whole texts in which the pattern of a JSON schema is found."""
    branches: list[list[str]] = [[]]
    depth = 0
    for token in TOKEN.findall(pattern):
        depth += (token == "(") - (token == ")")
        if token == "|" and depth == 0:
            branches.append([])
        else:
            branches[-1].append(token)
    return "|".join(map(_search_branch, branches))


def _search_branch(tokens: Sequence[str]) -> str:
    starts, ends = tokens[:1] == ["^"], tokens[-1:] == ["$"]
    inside = tokens[starts : len(tokens) - ends]
    return f"{'' if starts else '(?s:.*)'}{''.join(map(_portable, inside))}{'' if ends else '(?s:.*)'}"


def _portable(token: str) -> str:
    """A part of a JSON schema's regular expression as llguidance reads it in a grammar."""
    if token.startswith("["):
        return re.sub(r"\\.", lambda found: LETTERS.get(found[0], found[0]), token, flags=re.DOTALL)
    return f"[{LETTERS[token]}]" if token in LETTERS else token.lstrip("\\") if token in ("\\<", "\\>") else token


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
