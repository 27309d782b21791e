"""What the grammar library lets through of replies that may call tools."""

from pathlib import Path
from typing import Any

import pytest
from llguidance import LLMatcher
from llguidance.hf import from_tokenizer
from transformers import AutoTokenizer

import decoding
from decoding.core.grammar import Grammar
from server.config import ServerSettings
from server.endpoints.chat.rendered_chat import RenderedChat, ReplyReading, reading_of
from server.grammars.call_grammar import hermes_grammar
from server.prompts.chat_template import ChatTemplate
from server.prompts.special_tokens import MarkedText
from server.schemas.chat import ChatRequest
from server.schemas.tools import Tool

WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"unit": {"$ref": "#/$defs/Unit"}},
            "required": ["unit"],
            "$defs": {"Unit": {"enum": ["c", "f"]}},
        },
    },
}
STRICT = [Tool.model_validate(WEATHER)]
CALL = '<tool_call>\n{"name": "weather", "arguments": {"unit": "c"}}\n</tool_call>'


FORM: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}
LOOSE: Any = {"type": "function", "function": {"name": "time"}}


@pytest.mark.parametrize(
    ("fields", "start", "param", "is_free"),
    [
        ({"tools": [WEATHER, LOOSE]}, "start: segment* FREE", "tools", True),
        ({"tools": [LOOSE], "response_format": FORM}, "start: form |", "response_format.json_schema.schema", False),
        ({"tools": [LOOSE], "response_format": {"type": "json_object"}}, "start: form |", "response_format", False),
    ],
    ids=["strict", "schema", "object"],
)
def test_strict_tools_and_forms_make_a_grammar(fields: Any, start: str, param: str, is_free: bool) -> None:
    found = reading(fields).constraint
    assert found is not None
    assert (found.grammar.kind, found.param, found.is_free) == ("lark", param, is_free)
    assert found.grammar.text.startswith(start)


def test_loose_tools_make_none() -> None:
    assert reading({"tools": [LOOSE]}).constraint is None


def reading(fields: Any) -> ReplyReading:
    body = ChatRequest.model_validate({"messages": [{"role": "user", "content": "a"}]} | fields)
    chat = RenderedChat(body, ChatTemplate({"default": "{{ messages }}"}, {}), MarkedText("[]"))
    return reading_of(chat, ServerSettings())


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(Path(decoding.__file__).parent / "gosling")


def read(tokenizer: Any, grammar: Grammar | None, text: str) -> tuple[bool, bool]:
    """Whether the grammar lets the text through, and whether the reply may end there."""
    assert grammar is not None
    matcher = LLMatcher(from_tokenizer(tokenizer), LLMatcher.grammar_from_lark(grammar.text))
    assert not matcher.get_error()
    token_ids = tokenizer.encode(text, add_special_tokens=False)
    is_through = matcher.try_consume_tokens(token_ids) == len(token_ids)
    return is_through, is_through and bool(matcher.is_accepting())


@pytest.mark.parametrize(
    ("text", "is_through", "may_end"),
    [
        ("any <tool text\nat all", True, True),
        (CALL, True, True),
        (f"Let me see.\n{CALL}\n{CALL}", True, True),
        (f"<think>hm</think>{CALL} and then", True, True),
        ("<tool_call>\n", True, False),
        ('<tool_call>\n{"name": "weather", "arguments": {"unit": "k"', False, False),
        ('<tool_call>\n{"name": "other"', False, False),
        (f"{CALL}<tool_call>no", False, False),
    ],
    ids=repr,
)
def test_strict_calls_are_calls_and_the_rest_is_free(
    tokenizer: Any, text: str, is_through: bool, may_end: bool
) -> None:
    assert read(tokenizer, hermes_grammar(STRICT, None, ServerSettings()), text) == (is_through, may_end)


@pytest.mark.parametrize(
    ("text", "is_through", "may_end"),
    [
        ('{"kind": "fox"}', True, True),
        (f"{CALL}\n{CALL}", True, True),
        ('{"kind": "cat"}', False, False),
        ("free text", False, False),
        ('{"kind": "fox"}' + CALL, False, False),
    ],
    ids=repr,
)
def test_with_a_form_a_reply_is_calls_or_of_that_form(
    tokenizer: Any, text: str, is_through: bool, may_end: bool
) -> None:
    schema = '{"type": "object", "properties": {"kind": {"$ref": "#/$defs/K"}}, "$defs": {"K": {"enum": ["fox"]}}}'
    assert read(tokenizer, hermes_grammar(STRICT, Grammar("json_schema", schema), ServerSettings()), text) == (
        is_through,
        may_end,
    )
    assert read(tokenizer, hermes_grammar(STRICT, Grammar("json_object", ""), ServerSettings()), '{"any": 1}') == (
        True,
        True,
    )
