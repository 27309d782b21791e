"""Grammars and schemas of tool calls, both required and optional ones. `server.parsing` reads the replies."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from decoding.core.grammar import Grammar
from server.config import ServerSettings
from server.grammars.constraint import schema_text
from server.grammars.schema import argument_schema
from server.http.errors import invalid
from server.schemas.tools import Tool

# The separators with which models were trained to write calls; the grammar allows no other white space.
JSON_STYLE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
DEFINITIONS = ("$defs", "definitions")
POINTER = re.compile(r"#/(\$defs|definitions)/([^/]*)(.*)", re.DOTALL)
FREE_TEXT = """to_call[lazy]: /(?s:.*)<tool_call>/
SPACE: /[ \\n]+/
FREE: /(?s:.*)/ & ~/(?s:.*)<tool_call>(?s:.*)/
"""
FREE_OR_CALLS = 'start: segment* FREE\nsegment: to_call SPACE? call SPACE? "</tool_call>"\n' + FREE_TEXT
FORM_OR_CALLS = """start: form | segment (SPACE? segment)*
segment: "<tool_call>" SPACE? call SPACE? "</tool_call>"
SPACE: /[ \\n]+/
"""


def required_calls_schema(tools: Sequence[Tool], max_calls: int | None, settings: ServerSettings) -> dict[str, Any]:
    """The schema of a list of at least one call, each {"name", "parameters"} of one of `tools`. max_calls: None for any
    number. Raises ApiError for invalid schemas."""
    calls, definitions = _calls(tools, "parameters", settings, is_lenient=False)
    schema: dict[str, Any] = {"type": "array", "minItems": 1, "items": {"anyOf": calls}}
    if max_calls is not None:
        schema["maxItems"] = max_calls
    return schema | ({"$defs": definitions} if definitions else {})


def hermes_grammar(tools: Sequence[Tool], form: Grammar | None, settings: ServerSettings) -> Grammar | None:
    """The grammar of a reply that may call `tools` in Hermes' format; None where nothing is to be enforced.

    With strict tools, whatever follows <tool_call> must be a call whose arguments follow the tool's schema. With a
    `form` (of a JSON object or schema), the reply is either calls or of that form. Raises ApiError for invalid schemas.
    """
    if form is None and not any(tool.function.strict for tool in tools):
        return None
    calls, definitions = _calls(tools, "arguments", settings, is_lenient=True)
    schema: dict[str, Any] = {"anyOf": calls, "x-guidance": JSON_STYLE}
    call = json.dumps(schema | ({"$defs": definitions} if definitions else {}), ensure_ascii=False)
    if form is None:
        return Grammar("lark", f"{FREE_OR_CALLS}call: %json {call}\n")
    wanted = json.loads(form.text) if form.kind == "json_schema" else {"type": "object"}
    text = json.dumps(wanted | {"x-guidance": JSON_STYLE}, ensure_ascii=False)
    return Grammar("lark", f"{FORM_OR_CALLS}call: %json {call}\nform: %json {text}\n")


def _calls(
    tools: Sequence[Tool], key: str, settings: ServerSettings, is_lenient: bool
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """A schema for a call of each tool, with arguments under `key`, and the $defs that these schemas refer to.

    is_lenient: only strict tools' arguments must follow their schema; others' may be any object.
    """
    definitions: dict[str, Any] = {}
    calls = []
    for number, tool in enumerate(tools):
        arguments: Any = {"type": "object"}
        if tool.function.strict or not is_lenient:
            schema_text(tool.function.parameters, "tools", settings)
            arguments, own = _hoisted(argument_schema(tool), f"tool{number}_")
            definitions |= own
        properties = {"name": {"const": tool.function.name}, key: arguments}
        call = {"type": "object", "properties": properties, "required": ["name", key], "additionalProperties": False}
        calls.append(call)
    return calls, definitions


def _hoisted(schema: dict[str, Any], prefix: str) -> tuple[Any, dict[str, Any]]:
    """The schema without its definitions, and the definitions, renamed with `prefix`, for the root of a larger schema.
    References to them are renamed too."""
    own = {(keyword, name): item for keyword in DEFINITIONS for name, item in _definitions(schema, keyword).items()}

    def rewrite(value: Any) -> Any:
        if isinstance(value, list):
            return [rewrite(item) for item in value]
        if not isinstance(value, dict):
            return value
        rewritten = {name: rewrite(item) for name, item in value.items()}
        target = value.get("$ref")
        pointer = POINTER.match(target) if isinstance(target, str) else None
        if pointer is not None and (pointer[1], pointer[2].replace("~1", "/").replace("~0", "~")) in own:
            rewritten["$ref"] = f"#/$defs/{prefix}{pointer[2]}{pointer[3]}"
        return rewritten

    bare = {name: item for name, item in schema.items() if name not in DEFINITIONS}
    return rewrite(bare), {prefix + name: rewrite(item) for (_, name), item in own.items()}


def _definitions(schema: dict[str, Any], keyword: str) -> dict[str, Any]:
    """The schema's definitions under `keyword`. Raises ApiError where they are not an object."""
    found = schema.get(keyword, {})
    if not isinstance(found, dict):
        raise invalid(f"tools: {keyword} of a schema must be an object.", "tools", "invalid_schema")
    return found
