"""The constraint on a chat's reply: a response format, tool calls, or either of them."""

from __future__ import annotations

from collections.abc import Sequence

from decoding.core.grammar import Grammar
from server.config import ServerSettings
from server.grammars.call_grammar import hermes_grammar, required_calls_schema
from server.grammars.constraint import Constraint, check_text, constraint_of, schema_grammar
from server.grammars.schema import argument_schema
from server.http.errors import invalid
from server.parsing.families import Family
from server.schemas.chat import ChatRequest
from server.schemas.tools import Tool


def chat_constraint(
    body: ChatRequest, tools: Sequence[Tool], family: Family, settings: ServerSettings
) -> Constraint | None:
    """The constraint, or None. tools: those that may be called. Raises ApiError for two that exclude each other.

    Clients send a required tool call together with a response format. The call wins, because the format is for text.
    """
    if body.choice_of_tool.mode in ("required", "named"):
        if constraint_of(body.model_copy(update={"response_format": None}), settings) is not None:
            raise invalid("A required tool call and another constraint cannot be given together.", "tool_choice")
        return Constraint("tools", _forced_grammar(body, tools, settings))
    form = constraint_of(body, settings)
    if not tools or (form is None and family != "hermes"):
        return form
    if form is not None and (family != "hermes" or form.grammar.kind not in ("json_object", "json_schema")):
        raise invalid(f"tools and {form.param} cannot be given together to this model.", form.param)
    grammar = hermes_grammar(tools, None if form is None else form.grammar, settings)
    if grammar is None:
        return None
    check_text(grammar.text, "tools", 2 * settings.max_grammar_bytes)
    return Constraint("tools" if form is None else form.param, grammar, is_free=form is None)


def _forced_grammar(body: ChatRequest, tools: Sequence[Tool], settings: ServerSettings) -> Grammar:
    choice = body.choice_of_tool
    if choice.mode == "named":
        tool = next(tool for tool in tools if tool.function.name == choice.name)
        return schema_grammar(argument_schema(tool), "tools", settings)
    schema = required_calls_schema(tools, None if body.parallel_tool_calls else 1, settings)
    return schema_grammar(schema, "tools", settings)
