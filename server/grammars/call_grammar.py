"""Grammars and schemas of tool calls: calls that are required, and calls a model may make as it likes.

Owns their form; `server.parsing` reads what comes of it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from decoding.core.grammar import Grammar
from server.schemas.tools import Tool

# One way to write JSON, the one models are trained to write calls in.
JSON_STYLE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
FREE_TEXT = """to_call[lazy]: /(?s:.*)<tool_call>/
SPACE: /[ \\n]+/
FREE: /(?s:.*)/ & ~/(?s:.*)<tool_call>(?s:.*)/
"""
FREE_OR_CALLS = 'start: segment* FREE\nsegment: to_call SPACE? call SPACE? "</tool_call>"\n' + FREE_TEXT
FORM_OR_CALLS = """start: form | segment (SPACE? segment)*
segment: "<tool_call>" SPACE? call SPACE? "</tool_call>"
SPACE: /[ \\n]+/
"""


def required_calls_schema(tools: Sequence[Tool], max_calls: int | None) -> dict[str, Any]:
    """A list of one call or more, each {"name", "parameters"} of one of `tools`."""
    calls, definitions = _calls(tools, "parameters", is_lenient=False)
    schema: dict[str, Any] = {"type": "array", "minItems": 1, "items": {"anyOf": calls}}
    if max_calls is not None:
        schema["maxItems"] = max_calls
    return schema | ({"$defs": definitions} if definitions else {})


def hermes_grammar(tools: Sequence[Tool], form: Grammar | None) -> Grammar | None:
    """What a model that may call `tools` in Hermes' format is held to; None if nothing is asked for.

    Strict tools: whatever follows <tool_call> is a call, with arguments by the tool's schema. A form, which must be
    a JSON object's or schema's: the reply is calls, or of that form.
    """
    if form is None and not any(tool.function.strict for tool in tools):
        return None
    calls, definitions = _calls(tools, "arguments", is_lenient=True)
    schema: dict[str, Any] = {"anyOf": calls, "x-guidance": JSON_STYLE}
    call = json.dumps(schema | ({"$defs": definitions} if definitions else {}), ensure_ascii=False)
    if form is None:
        return Grammar("lark", f"{FREE_OR_CALLS}call: %json {call}\n")
    wanted = json.loads(form.text) if form.kind == "json_schema" else {"type": "object"}
    text = json.dumps(wanted | {"x-guidance": JSON_STYLE}, ensure_ascii=False)
    return Grammar("lark", f"{FORM_OR_CALLS}call: %json {call}\nform: %json {text}\n")


def _calls(tools: Sequence[Tool], key: str, is_lenient: bool) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """A schema for a call of each tool, arguments under `key`, and the definitions they share a root with.

    is_lenient: only the arguments of strict tools follow their schema.
    """
    definitions: dict[str, Any] = {}
    calls = []
    for number, tool in enumerate(tools):
        arguments: Any = {"type": "object"}
        if tool.function.strict or not is_lenient:
            arguments, own = _hoisted(argument_schema(tool), f"tool{number}_")
            definitions |= own
        properties = {"name": {"const": tool.function.name}, key: arguments}
        call = {"type": "object", "properties": properties, "required": ["name", key], "additionalProperties": False}
        calls.append(call)
    return calls, definitions


def argument_schema(tool: Tool) -> dict[str, Any]:
    """What forced arguments keep to: a function takes the parameters it names and, unless it says so, no others."""
    parameters = tool.function.schema_of_arguments
    return {"additionalProperties": False, **parameters} if parameters.get("type") == "object" else parameters


def _hoisted(schema: dict[str, Any], prefix: str) -> tuple[Any, dict[str, Any]]:
    """The schema without its own definitions, and these under names of their own, for the root of a larger one."""
    renamed = {}
    for keyword in ("$defs", "definitions"):
        for name in schema.get(keyword, {}):
            renamed[f"#/{keyword}/{name}"] = f"#/$defs/{prefix}{name}"

    def rewrite(value: Any) -> Any:
        if isinstance(value, list):
            return [rewrite(item) for item in value]
        if not isinstance(value, dict):
            return value
        rewritten = {name: rewrite(item) for name, item in value.items()}
        target = value.get("$ref")
        if isinstance(target, str):
            known = next((old for old in renamed if target == old or target.startswith(old + "/")), None)
            if known is not None:
                rewritten["$ref"] = renamed[known] + target[len(known) :]
        return rewritten

    definitions = {
        prefix + name: rewrite(item)
        for keyword in ("$defs", "definitions")
        for name, item in schema.get(keyword, {}).items()
    }
    bare = {name: item for name, item in schema.items() if name not in ("$defs", "definitions")}
    return rewrite(bare), definitions
