"""Makes the grammar that a reply must follow of the fields that ask for one, and checks its size before it is compiled.

Knows nothing of how grammars are enforced.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from decoding.core.grammar import Grammar
from server.config import ServerSettings
from server.grammars.schema import enforceable
from server.http.body import depth_of
from server.http.errors import invalid, require_at_most
from server.schemas.generation import GenerationRequest

OPTIONS = ("json", "json_object", "regex", "choice", "grammar")


@dataclass(frozen=True, slots=True)
class Constraint:
    """param: the field the grammar came from; may_think: the grammar lets a thought come first; loose: a schema of
    which the grammar may not enforce all."""

    param: str
    grammar: Grammar
    may_think: bool = False
    loose: Mapping[str, Any] | None = None


def constraint_of(body: GenerationRequest, settings: ServerSettings) -> Constraint | None:
    """The body's constraint, or None. Raises ApiError for two constraints at once, or one above the limits."""
    found = _candidates(body, settings)
    if len(found) > 1:
        names = " and ".join(each.param for each in found)
        raise invalid(f"{names} cannot be given together.", found[1].param)
    return found[0] if found else None


def _candidates(body: GenerationRequest, settings: ServerSettings) -> list[Constraint]:
    form, outputs = body.response_format, body.structured_outputs
    candidates: list[Constraint] = []
    if form is not None and form.type == "json_object":
        candidates.append(Constraint("response_format", Grammar("json_object", "")))
    if form is not None and form.json_schema is not None:
        param = "response_format.json_schema.schema"
        schema, is_strict = form.json_schema.definition, form.json_schema.strict
        grammar = schema_grammar(schema, param, settings, is_strict)
        candidates.append(Constraint(param, grammar, loose=None if is_strict else schema))
    fields: dict[str, tuple[str, Any]] = {
        "guided_json": ("json", body.guided_json),
        "guided_regex": ("regex", body.guided_regex),
        "guided_choice": ("choice", body.guided_choice),
        "guided_grammar": ("grammar", body.guided_grammar),
    }
    if outputs is not None:
        values = (outputs.definition, outputs.json_object or None, outputs.regex, outputs.choice, outputs.grammar)
        for name, value in zip(OPTIONS, values, strict=True):
            fields[f"structured_outputs.{name}"] = (name, value)
    for param, (kind, value) in fields.items():
        if value is not None:
            candidates.append(Constraint(param, _grammar(kind, value, param, settings)))
    return candidates


def _grammar(kind: str, value: Any, param: str, settings: ServerSettings) -> Grammar:
    if kind == "json":
        return schema_grammar(value, param, settings)
    if kind == "json_object":
        return Grammar("json_object", "")
    text = json.dumps(value, ensure_ascii=False) if kind == "choice" else value
    check_text(text, param, settings.max_grammar_bytes)
    if kind == "choice":
        if not all(value):
            raise invalid(f"{param} must not have an empty choice.", param)
        return Grammar("choice", text)
    return Grammar("regex" if kind == "regex" else "lark", text)


def schema_grammar(
    schema: Mapping[str, Any] | str, param: str, settings: ServerSettings, is_strict: bool = True
) -> Grammar:
    if isinstance(schema, str):
        try:
            schema = json.loads(schema)
        except (ValueError, RecursionError) as error:
            raise invalid(f"{param} is not valid JSON: {error}.", param, "invalid_schema") from None
        if not isinstance(schema, dict):
            raise invalid(f"{param} must be a JSON object.", param, "invalid_schema")
    schema_text(schema, param, settings)
    return Grammar("json_schema", json.dumps(enforceable(schema, param, is_strict=is_strict), ensure_ascii=False))


def schema_text(schema: Mapping[str, Any], param: str, settings: ServerSettings) -> str:
    """The schema as JSON text. Raises ApiError for one that is too deep, too long or not JSON."""
    require_at_most(depth_of(schema), settings.max_schema_depth, param)
    try:
        text = json.dumps(schema, ensure_ascii=False, allow_nan=False)
    except ValueError:
        raise invalid(f"{param} has a number that is not finite.", param, "invalid_schema") from None
    check_text(text, param, settings.max_grammar_bytes)
    return text


def check_text(text: str, param: str, max_bytes: int) -> None:
    """Raises ApiError for text that is too long or not Unicode."""
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        message = f"{param} has half a surrogate pair, which is not a character."
        raise invalid(message, param, "invalid_unicode") from None
    require_at_most(size, max_bytes, param)
