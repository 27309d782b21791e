"""The constraint on a chat's reply: a response format, tool calls, or either of them, after a thought."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from decoding.core.grammar import Grammar
from server.config import ServerSettings
from server.grammars.argument_schema import argument_schema
from server.grammars.call_grammar import SPACE, CallGrammar
from server.grammars.constraint import Constraint, check_text, constraint_of, schema_text
from server.grammars.free_text import FreeText
from server.grammars.lark_rules import LarkRules, expression, quoted
from server.grammars.schema_parts import without_annotations
from server.http.errors import ApiError, invalid
from server.http.notices import tell
from server.parsing.reply_format import CallForm, ReplyFormat
from server.schemas.chat import ChatRequest
from server.schemas.tools import Tool

UNKNOWN_FORMAT = (
    "the format in which this model writes calls is not known, so that none can be enforced. Name it when the server "
    "starts, with --tool-parser or --response-template, or ask for tool_choice auto without strict tools."
)


def chat_constraint(
    body: ChatRequest,
    tools: Sequence[Tool],
    format_: ReplyFormat,
    open_thought: str,
    special_id: Callable[[str], int | None],
    settings: ServerSettings,
) -> Constraint | None:
    """The constraint, or None. Raises ApiError for two that exclude each other, and for what cannot be enforced.

    tools: those that may be called; format_: of the model's replies, without thoughts where the prompt has closed one;
    open_thought: the closing mark of a thought that the prompt leaves open, "" for none; special_id: the id of a
    special token by its name, None for other text. Clients send a required tool call together with a response format.
    The call wins, because the format is for text.
    """
    choice = body.choice_of_tool
    is_forced = choice.mode in ("required", "named")
    form = constraint_of(body.model_copy(update={"response_format": None}) if is_forced else body, settings)
    if is_forced and form is not None:
        raise invalid("A required tool call and another constraint cannot be given together.", "tool_choice")
    rules = LarkRules(special_id)
    if not is_forced and not (tools and (form is not None or any(tool.function.strict for tool in tools))):
        return _form_after_thought(form, open_thought, rules)
    param = "tool_choice" if is_forced else "tools" if form is None else form.param
    if not format_.calls:
        raise invalid(f"{param}: {UNKNOWN_FORMAT}", param, "unknown_call_format")
    if form is not None and form.grammar.kind not in ("json_object", "json_schema"):
        raise invalid(f"tools and {form.param} cannot be given together.", form.param)
    called = [tool for tool in tools if choice.mode != "named" or tool.function.name == choice.name]
    schemas = {tool.function.name: _arguments(tool, is_forced, settings) for tool in called}
    for tool in called if is_forced else ():
        if not tool.function.strict and tool.text_form is None:
            schemas[tool.function.name] = _writable(tool, schemas[tool.function.name], format_.calls[0], special_id)
    texts = {tool.function.name: tool.text_form for tool in called if tool.text_form is not None}
    for form_of_text in texts.values():
        check_text(form_of_text.definition, "tools", settings.max_grammar_bytes)
    grammar = CallGrammar(rules, format_.calls[0], schemas, texts)
    if is_forced:
        max_calls = None if body.parallel_tool_calls and choice.mode == "required" else 1
        reply = grammar.calls(max_calls)
    elif form is not None:
        reply = f"({_form(form.grammar, rules)} | {grammar.calls()})"
    else:
        reply = FreeText(rules, format_, grammar, schemas).reply()
    text = rules.text(f"{_thought(format_, open_thought, rules)} {reply}")
    check_text(text, "tools", 2 * settings.max_grammar_bytes)
    is_free = not is_forced and form is None
    may_think = is_free or bool(open_thought or format_.thoughts)
    loose = None if form is None else form.loose
    return Constraint(form.param if form is not None else "tools", Grammar("lark", text), may_think, loose)


def _arguments(tool: Tool, is_forced: bool, settings: ServerSettings) -> Mapping[str, Any]:
    """The schema that the arguments follow. Where calls are optional, only strict tools' follow theirs."""
    if not is_forced and not tool.function.strict:
        return {"type": "object"}
    schema_text(tool.function.parameters, "tools", settings)
    return without_annotations(argument_schema(tool))


def _writable(
    tool: Tool, schema: Mapping[str, Any], form: CallForm, special_id: Callable[[str], int | None]
) -> Mapping[str, Any]:
    """The schema, where the form of this model's calls can hold its arguments to it; else that of any object, of which
    the client is told."""
    try:
        CallGrammar(LarkRules(special_id), form, {tool.function.name: schema})
    except ApiError as error:
        if error.code != "invalid_schema":
            raise
        tell(f"{error.message} It is not strict: any object is taken.")
        return {"type": "object"}
    return schema


def _thought(format_: ReplyFormat, open_thought: str, rules: LarkRules) -> str:
    """The rest of the prompt's thought, or one that may come first."""
    between = format_.calls[0].between
    after = f"({rules.mark(between)})?" if between in format_.frames else ""  # another message begins
    if open_thought:
        return f"{rules.text_to(open_thought)} {rules.terminal(SPACE)} {after}"
    thoughts = []
    for opening, closing in format_.thoughts:
        has_token = any(isinstance(piece, int) for piece in rules.fixed(opening))
        first, inside = (rules.mark(opening), "") if has_token else ("", opening)
        thoughts.append(f"{first} {rules.text_to(closing, opening=inside)}")
    return f"(({' | '.join(thoughts)}) {rules.terminal(SPACE)} {after})?" if thoughts else ""


def _form_after_thought(form: Constraint | None, open_thought: str, rules: LarkRules) -> Constraint | None:
    if form is None or not open_thought:
        return form
    text = rules.text(f"{rules.text_to(open_thought)} {rules.terminal(SPACE)} {_form(form.grammar, rules)}")
    return replace(form, grammar=Grammar("lark", text), may_think=True)


def _form(grammar: Grammar, rules: LarkRules) -> str:
    """A form of replies as a part of a larger grammar."""
    match grammar.kind:
        case "json_schema":
            return rules.json(json.loads(grammar.text))
        case "json_object":
            return rules.json({"type": "object"})
        case "choice":
            return f"({' | '.join(map(quoted, json.loads(grammar.text)))})"
        case "regex":
            return rules.terminal(expression(grammar.text))
        case "lark":
            return f"%lark {{\n{grammar.text}\n}}"
