"""Conversations with calls, thoughts and tools, as templates of different families are shown them.

The templates are written for these tests, each after what one family's asks for.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest

from server.http.errors import ApiError
from server.prompts.chat_template import ChatTemplate
from server.prompts.conversation import TOOLS_BEGIN, ChatInput, conversation_of
from server.prompts.special_tokens import SpecialTokens
from server.schemas.messages import ChatMessage
from server.schemas.tools import Tool

USER = {"role": "user", "content": "hi"}
SYSTEM = {"role": "system", "content": "be brief"}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "42"}
STARTED: dict[str, ChatTemplate] = {}  # the one of the last prompt, by its source


def called(arguments: str = "{}", **fields: Any) -> dict[str, Any]:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    return {"role": "assistant", "content": None, "tool_calls": [call], **fields}


def prompt(source: str, *messages: dict[str, Any], tools: tuple[Any, ...] = (), **options: Any) -> str:
    given = ChatInput(
        [ChatMessage.model_validate(message) for message in messages],
        [Tool.model_validate(tool) for tool in tools],
        options,
    )
    template = template_of(source)
    conversation = conversation_of(given, template, SpecialTokens(["<|end|>"]))
    return asyncio.run(template.render(conversation)).text


def template_of(source: str) -> ChatTemplate:
    """Each starts a process: the last one stays for the next prompt."""
    if source not in STARTED:
        close_templates()
        STARTED[source] = ChatTemplate({"default": source}, {"bos_token": "<s>"})
    return STARTED[source]


def close_templates() -> None:
    while STARTED:
        STARTED.popitem()[1].close()


@pytest.fixture(scope="module", autouse=True)
def _templates_are_closed() -> Iterator[None]:
    yield
    close_templates()


LOOP = "{% for m in messages %}{% for c in m.tool_calls or [] %}"
END = "{% endfor %}{% endfor %}"
AS_OBJECT = {
    "written as JSON": LOOP + "{{ c.function.arguments | tojson }}" + END,
    "as parameters": LOOP + "{% for n, v in c.function.arguments | items %}[{{ n }}={{ v }}]{% endfor %}" + END,
}
AS_TEXT = {
    "concatenated": LOOP + "{{ '<' + c['function']['name'] + '>' + c['function']['arguments'] + '</>' }}" + END,
    "concatenated first": LOOP + "{{ c.function.arguments + '.' }}" + END,
    "joined": LOOP + "{{ 'args ' ~ c.function.arguments ~ '.' }}" + END,
    "printed": LOOP + "{{ c.function.arguments }}" + END,
    "filtered": LOOP + "{{ c.function.arguments | trim }}" + END,
    "stripped": LOOP + "{{ c.function.arguments.strip() }}" + END,
    "required": LOOP
    + "{% if c.function.arguments is not string %}{{ raise_exception('no text') }}{% endif %}{{ c.function.arguments }}"
    + END,
    "either": LOOP
    + "{% if c.function.arguments is string %}text{% else %}{{ c.function.arguments | tojson }}{% endif %}"
    + END,
}


@pytest.mark.parametrize("arguments", ["", " ", "null", "{}", "[]", '""', " null\n"])
@pytest.mark.parametrize("name", [*AS_OBJECT, *AS_TEXT])
def test_a_call_without_arguments_has_an_empty_object(name: str, arguments: str) -> None:
    text = prompt((AS_OBJECT | AS_TEXT)[name], USER, called(arguments))
    wanted = {"as parameters": "", "concatenated": "<f>{}</>", "concatenated first": "{}.", "joined": "args {}."}
    assert text == wanted.get(name, "{}")


@pytest.mark.parametrize("name", [name for name in AS_TEXT if name != "either"])
def test_a_template_that_wants_text_gets_the_text_that_the_client_sent(name: str) -> None:
    arguments = '{"city":"Köln",  "n": [1, true]}'
    assert arguments in prompt(AS_TEXT[name], USER, called(arguments))


def test_a_template_that_wants_an_object_gets_one() -> None:
    arguments = '{"city":"Köln","n":1}'
    assert prompt(AS_OBJECT["written as JSON"], USER, called(arguments)) == '{"city": "Köln", "n": 1}'
    assert prompt(AS_OBJECT["as parameters"], USER, called(arguments)) == "[city=Köln][n=1]"
    assert prompt(AS_TEXT["either"], USER, called(arguments)) == '{"city": "Köln", "n": 1}'


def test_names_of_special_tokens_stay_text_in_arguments_of_either_kind() -> None:
    arguments = '{"a": "<|end|>"}'
    for source in (AS_OBJECT["written as JSON"], AS_TEXT["concatenated"], AS_TEXT["stripped"]):
        text = prompt(source, USER, called(arguments))
        assert "<|end|>" not in text
        assert "|end|>" in text


def test_arguments_that_are_no_object_stay_as_they_are() -> None:
    for arguments in ("[1]", "5", "{broken", '"x"'):
        assert prompt(AS_TEXT["concatenated"], USER, called(arguments)) == f"<f>{arguments}</>"


NULL_BRANCHES = [
    "m.content is none",
    "m['content'] is none",
    'm["content"] == none',
    "m.get('content') is none",
    "not m.content is not none",
    "not (m['content'] != None)",
]


@pytest.mark.parametrize("content", [{}, {"content": None}, {"content": ""}, {"content": []}])
@pytest.mark.parametrize("condition", NULL_BRANCHES)
def test_content_that_is_null_stays_so_where_the_template_asks(condition: str, content: dict[str, Any]) -> None:
    source = f"{{% for m in messages %}}{{% if {condition} %}}calls {{{{ m.tool_calls[0].function.name }}}}"
    source += "{% else %}{{ m.content + '|' }}{% endif %}{% endfor %}"
    message = called() | content
    message = message if content else {name: value for name, value in message.items() if name != "content"}
    assert prompt(source, USER, message) == "hi|calls f"
    assert prompt(source, USER, called(content="so")) == "hi|so|"


def test_content_that_is_null_is_empty_where_the_template_does_not_ask() -> None:
    assert prompt(LOOP + "{{ m.content + c.function.name }}" + END, USER, called()) == "f"
    asks_elsewhere = LOOP + "{{ m.content + c.function.name }}{% if x and m.content is none %}{% endif %}" + END
    assert prompt(asks_elsewhere, USER, called()) == "f"


@pytest.mark.parametrize("given", ["reasoning_content", "reasoning", "thinking"])
@pytest.mark.parametrize("read", ["reasoning_content", "reasoning", "thinking"])
def test_an_earlier_thought_has_the_names_that_templates_read(given: str, read: str) -> None:
    source = "{% for m in messages %}{{ m." + read + " or '' }}{{ m.content }}{% endfor %}"
    assert prompt(source, USER, {"role": "assistant", "content": "yes", given: "hm. "}) == "hihm. yes"
    assert prompt(source, USER, {"role": "assistant", given: "hm. "}, USER) == "hihm. hi"


def test_what_was_said_before_a_call_ends_the_thought_where_a_template_takes_only_one() -> None:
    source = (
        LOOP + "{% if m.content and m.thinking %}{{ raise_exception('one of them') }}{% endif %}"
        "<{{ m.thinking or m.content }}>{{ c.function.name }}" + END
    )
    assert prompt(source, USER, called(reasoning_content="hm", content="wait")) == "<hm\n\nwait>f"
    assert prompt(source, USER, called(content="wait")) == "<wait>f"


def test_documents_reach_the_template() -> None:
    documents = [{"title": "a", "text": "b"}]
    source = "{% for d in documents or [] %}{{ d.title }}: {{ d.text }};{% endfor %}{{ documents is none }}"
    assert prompt(source, USER, documents=documents) == "a: b;False"
    assert prompt(source, USER) == "True"


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ("ensure_ascii=False", '{"b": "é", "a": [1, 2]}'),
        ("ensure_ascii=True", '{"b": "\\u00e9", "a": [1, 2]}'),
        ("true", '{"b": "\\u00e9", "a": [1, 2]}'),
        ("separators=(',', ':')", '{"b":"é","a":[1,2]}'),
        ("sort_keys=True", '{"a": [1, 2], "b": "é"}'),
        ("indent=1", '{\n "b": "é",\n "a": [\n  1,\n  2\n ]\n}'),
        ("false, none, (',', ':'), true", '{"a":[1,2],"b":"é"}'),
    ],
)
def test_tojson_has_the_options_of_transformers(options: str, wanted: str) -> None:
    assert prompt("{{ value | tojson(" + options + ") }}", USER, value={"b": "é", "a": [1, 2]}) == wanted


ALTERNATING = (
    "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    "{% for m in messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}<{{ m['role'] }}>{{ m['content'] | trim }}{% endfor %}"
)
DROPPING = (
    "{% for m in messages %}{% if m.role == 'user' %}<user>{{ m.content | trim }}"
    "{% elif m.role == 'assistant' %}<assistant>{{ m.content | trim }}{% endif %}{% endfor %}"
)


@pytest.mark.parametrize("source", [ALTERNATING, DROPPING])
def test_without_a_system_role_the_first_user_message_describes_the_tools(source: str) -> None:
    text = prompt(source, USER, tools=(TOOL,))
    assert text.startswith(f"<user>{TOOLS_BEGIN}")
    assert text.endswith("</tool_call>\n\nhi")
    with_system = prompt(source, SYSTEM, USER, tools=(TOOL,))
    assert with_system == text.replace(TOOLS_BEGIN, f"be brief\n\n{TOOLS_BEGIN}")
    first = prompt(source, {"role": "assistant", "content": "hello"}, USER, tools=(TOOL,))
    assert first.endswith("</tool_call><assistant>hello<user>hi")


@pytest.mark.parametrize("source", [ALTERNATING, DROPPING])
def test_without_a_tool_role_the_user_tells_what_tools_return(source: str) -> None:
    call = called('{"a": 1}', content="so:")
    two = call | {"tool_calls": [call["tool_calls"][0], call["tool_calls"][0] | {"id": "c2"}]}
    text = prompt(source, USER, two, RESULT, RESULT | {"tool_call_id": "c2", "content": " 43 "}, USER, tools=(TOOL,))
    written = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
    results = "<tool_response>\n42\n</tool_response>\n\n<tool_response>\n 43 \n</tool_response>"
    assert text.partition("hi<assistant>")[2] == f"so:\n{written}\n{written}<user>{results}\n\nhi"


def test_a_template_that_takes_the_messages_gets_them_as_they_are() -> None:
    source = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    text = prompt(source, SYSTEM, USER, called(), RESULT, tools=(TOOL,))
    assert text.startswith(f"<system>be brief\n\n{TOOLS_BEGIN}")
    assert text.endswith("<tool>42")
    dumped = json.loads(prompt("{{ messages | tojson }}", USER, tools=(TOOL,)))
    assert [message["role"] for message in dumped] == ["system", "user"]


def test_a_refusal_is_quoted_as_of_the_messages_that_were_sent() -> None:
    with pytest.raises(ApiError, match="roles must alternate") as caught:
        prompt(ALTERNATING, USER, {"role": "assistant", "content": "a"}, {"role": "assistant", "content": "b"})
    assert caught.value.param == "messages"
    with pytest.raises(ApiError, match="first: f"):
        prompt("{{ raise_exception('first: ' ~ messages[1].tool_calls[0].function.name) }}", USER, called("{}"))


def test_a_conversation_without_messages_is_refused() -> None:
    for tools in ((), (TOOL,)):
        with pytest.raises(ApiError) as caught:
            prompt("x", tools=tools)
        assert (caught.value.status, caught.value.param, caught.value.code) == (400, "messages", "empty_prompt")
