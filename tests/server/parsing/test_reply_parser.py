"""What is a call and what is text: objects as models write them, values by their types, calls without marks."""

import json
from typing import Any

import pytest

from server.parsing.parts import CallStart, Content, Part, Reasoning, merged
from server.parsing.reply_parser import CallsWanted
from server.parsing.template_parser import TemplateParser, load_response_template
from tests.server.parsing.family_replies import ARGUMENTS, HERMES, JSON
from tests.server.parsing.replies import call, called, check, parser_of, read, said

NOW = HERMES.format("now", "{}")
CITY = '{"city": "Rome"}'


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("just text", [Content("just text")]),
        ("a < b <tool and <tool_cal", [Content("a < b <tool and <tool_cal")]),
        ("the <tool_call> tag, <tool_call>{} x", [Content("the <tool_call> tag, <tool_call>{} x")]),
        (f"<tool_call>no json</tool_call> {NOW}", [Content("<tool_call>no json</tool_call>"), *call(0, "now", "{}")]),
        ('<tool_call>{"x": 1}</tool_call>', [Content('<tool_call>{"x": 1}</tool_call>')]),
        (HERMES.format("weather", '{"city": "</tool_call>"}'), call(0, "weather", '{"city": "</tool_call>"}')),
        (f'<tool_call>{{"arguments": {CITY}, "name": "weather"}}</tool_call>', call(0, "weather", CITY)),
        (f'<tool_call>{{"name": "weather", "parameters": {CITY}}}</tool_call>', call(0, "weather", CITY)),
        (
            f'<tool_call>{{"type": "function", "function": {{"name": "weather", "arguments": {CITY}}}}}</tool_call>',
            call(0, "weather", CITY),
        ),
        (
            f'<tool_call>[{{"name": "now"}}, {{"name": "weather", "arguments": {CITY}}}]</tool_call>',
            [*call(0, "now", "{}"), *call(1, "weather", CITY)],
        ),
        (HERMES.format("weather", json.dumps(CITY)), call(0, "weather", CITY)),
        (HERMES.format("now", "null"), call(0, "now", "{}")),
        (HERMES.format("now", '""'), call(0, "now", "{}")),
        (HERMES.format("now", '"null"'), call(0, "now", "{}")),
        ('<tool_call>{"name": "now"}</tool_call>', call(0, "now", "{}")),
        (f"{NOW}\n\n", call(0, "now", "{}")),
        (HERMES.format("weather", '{"city": "a\\\\"}'), call(0, "weather", '{"city": "a\\\\"}')),
        (f'<tool_call>{{"name": "unknown", "arguments": {CITY}}}</tool_call>', call(0, "unknown", CITY)),
    ],
    ids=lambda value: str(value)[:60],
)
def test_calls_between_marks(text: str, expected: list[Part]) -> None:
    check(text, expected)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"name": "Tom", "age": 3}', [Content('{"name": "Tom", "age": 3}')]),
        ('{"title": "x"}', [Content('{"title": "x"}')]),
        ('{"name": "wea', [Content('{"name": "wea')]),
        ('<|python_tag|>{"name": "now", "parameters": {}}', call(0, "now", "{}")),
        ('{"name": "now", "parameters": {}} as you see', [*call(0, "now", "{}"), Content(" as you see")]),
    ],
    ids=lambda value: str(value)[:60],
)
def test_calls_that_are_the_whole_reply_name_a_function_that_there_is(text: str, expected: list[Part]) -> None:
    check(text, expected, "llama3")


@pytest.mark.parametrize(
    ("family", "text"),
    [
        ("mistral", f"[TOOL_CALLS]weather[CALL_ID]a1B2c3D4e[ARGS]{JSON}"),
        ("mistral_v11", f'[TOOL_CALLS][{{"name": "weather", "arguments": {JSON}}}]'),
        ("kimi_k2", f"<|tool_call_begin|>weather:3<|tool_call_argument_begin|>{JSON}<|tool_call_end|>"),
        ("gpt_oss", f" to=functions.weather<|channel|>commentary json<|message|>{JSON}"),
        ("gpt_oss", f"<|channel|>analysis to=functions.weather code<|message|>{JSON}<|call|>"),
        ("llama4", f'<|python_start|>{{"name": "weather", "parameters": {JSON}}}<|python_end|>'),
        ("qwen3_coder", '<function=weather>\n<parameter=city>\nAix "en" {Provence}\n</parameter>\n</function>'),
    ],
)
def test_other_forms_of_a_family_are_read_too(family: str, text: str) -> None:
    parts = read([text], parser_of(family))
    [(name, arguments)] = called(parts)
    assert name == "weather"
    assert arguments["city"] == ARGUMENTS["city"]
    assert not said(parts)
    check(text, list(parts), family)


TYPES: dict[str, Any] = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "number": {"type": "number"},
        "integer": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        "either": {"type": ["string", "integer"]},
        "list": {"$ref": "#/$defs/list"},
        "choice": {"enum": ["a", "b"]},
        "flag": {"type": "boolean"},
    },
    "$defs": {"list": {"type": "array"}},
}


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("text", "12", "12"),
        ("text", "true", "true"),
        ("text", " two\nlines ", " two\nlines "),
        ("text", "</parameter> in it", "</parameter> in it"),
        ("text", 'a "b" \\ é', 'a "b" \\ é'),
        ("number", "1.50", 1.5),
        ("number", "many", "many"),
        ("integer", "9007199254740993", 9007199254740993),
        ("integer", "3.0", 3),
        ("integer", "None", None),
        ("either", "7", 7),
        ("either", "seven", "seven"),
        ("list", "[1, 2]", [1, 2]),
        ("list", "['a', True]", ["a", True]),
        ("choice", "a", "a"),
        ("flag", "False", False),
        ("unknown", "[1]", [1]),
        ("unknown", "02134", "02134"),
        ("unknown", "plain", "plain"),
    ],
)
def test_values_between_marks_have_the_types_of_the_schema(key: str, text: str, value: Any) -> None:
    reply = f"<tool_call>\n<function=f>\n<parameter={key}>\n{text}\n</parameter>\n</function>\n</tool_call>"
    parts = read([reply], parser_of("qwen3_coder", schemas={"f": TYPES}))
    assert called(parts) == [("f", {key: value})]
    check(reply, list(parts), "qwen3_coder", schemas={"f": TYPES})


def test_text_between_marks_is_passed_on_as_it_comes() -> None:
    parser = parser_of("qwen3_coder")
    parser.push("<tool_call>\n<function=weather>\n<parameter=city>\n")
    assert [part.text for part in parser.push("Rom") if not isinstance(part, Reasoning)] == ["Rom"]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("arguments", "value"),
    [
        ('"Rome", days=2', {"city": "Rome", "days": 2}),
        ("city='a)]\\n', is_long=true", {"city": "a)]\n", "is_long": True}),
        ("where={'lat': -1.5, 'tags': [None]}", {"where": {"lat": -1.5, "tags": [None]}}),
    ],
)
def test_python_calls(arguments: str, value: Any) -> None:
    check_text = f"[weather({arguments})]"
    parts = read([check_text], parser_of("pythonic"))
    assert called(parts) == [("weather", value)]
    check(check_text, list(parts), "pythonic")


@pytest.mark.parametrize("text", ["[weather(city=open('x'))]", "[weather(**x)]", "[other()]", "[1, 2]", "[weather("])
def test_python_that_is_no_call_is_text(text: str) -> None:
    check(text, [Content(text)], "pythonic")


BARE = f'{{"name": "weather", "arguments": {CITY}}}'


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (BARE, ["weather"]),
        (f"```json\n{BARE}\n```", ["weather"]),
        (f"```\n{BARE}\n{BARE}\n```\n", ["weather", "weather"]),
        (f"```json\n{BARE}\n```\n```json\n{BARE}\n```", ["weather", "weather"]),
        (f"[{BARE}, {BARE}]", ["weather", "weather"]),
        ('{"name": "now"}', ["now"]),
        ('{"type": "function", "function": {"name": "now", "arguments": {}}}', ["now"]),
        (f"{BARE} as asked", []),
        (f"So: {BARE}", []),
        ('{"name": "other", "arguments": {}}', []),
        ('{"name": "weather", "arguments": {}}', []),
        ('{"name": "weather", "arguments": {"city": 7}}', []),
        ('{"name": "weather", "arguments": {"city": "Rome", "where": {"lat": "north"}}}', []),
        ('{"name": "weather", "arguments": {"city": "Rome"}, "comment": "x"}', []),
        ('{"name": "weather", "arguments": [1]}', []),
        (f"`{BARE}`", []),
        (f"```json\n{BARE}", ["weather"]),
        ("```python\nprint(1)\n```", []),
        ("[]", []),
    ],
)
def test_calls_without_marks_are_calls_where_the_reply_is_nothing_else(text: str, names: list[str]) -> None:
    expected = [
        part for index, name in enumerate(names) for part in call(index, name, CITY if name[0] == "w" else "{}")
    ]
    check(text, expected or [Content(text)])
    check(f"<think>hm</think>\n{text}", [Reasoning("hm"), *(expected or [Content(text)])], "hermes", "think")


@pytest.mark.parametrize(
    "begin", ["", "```json\n", f"{NOW}\n", f"{BARE}\n", f"```\n{BARE}\n", f"{BARE}\n</tool_call>\n"]
)
def test_a_call_without_marks_that_is_cut_is_a_call_as_far_as_it_goes(begin: str) -> None:
    """It is one once its name has come; what comes before that is text where it is all there is."""
    before = read([begin], parser_of(), is_cut=True) if "{" in begin else ()
    num_before = len(before) // 2
    for size in range(len(BARE)):
        reply = begin + BARE[:size]
        parts = read([reply], parser_of(), is_cut=True)
        has_name, rest = size > BARE.index('",'), call(num_before, "weather", BARE[BARE.index(": {") + 2 : size])
        expected = [*before, *(merged(rest) if has_name else ())]
        assert list(parts) == (expected or [Content(reply)] * bool(reply)), reply
        assert read(list(reply), parser_of(), is_cut=True) == parts
        if size:
            assert said(read([reply], parser_of())), "it ended of itself, and is no call"


@pytest.mark.parametrize(
    "text",
    [
        f"{BARE}\nSo I",
        f"So: {BARE[:-9]}",
        '{"name": "other", "arguments": {"ci',
        '{"name": "weather", "arguments": {"city": "Rome"}, "comment": "x',
        '{"name": "weather", "arguments": {"city": 7}}\n{"name": "weather", "arg',
    ],
)
def test_a_cut_reply_that_is_not_calls_alone_is_text(text: str) -> None:
    assert read([text], parser_of(), is_cut=True) == (Content(text),)


def test_calls_without_marks_may_follow_calls_between_marks() -> None:
    check(
        f"Let me see. {NOW}\n{BARE}\n</tool_call>",
        [Content("Let me see."), *call(0, "now", "{}"), *call(1, "weather", CITY)],
    )
    check(f"{NOW}\n{BARE} as asked", [*call(0, "now", "{}"), Content(f"\n{BARE} as asked")])


def test_a_python_call_that_is_cut_is_a_call_without_arguments() -> None:
    assert read(["[now(), weather(city='R"], parser_of("pythonic"), is_cut=True)[-1] == CallStart(1, "id1", "weather")
    text = "[weather(city='R"
    assert read([text], parser_of("pythonic"), is_cut=True) == (CallStart(0, "id0", "weather"),)
    assert read([text], parser_of("pythonic")) == (Content(text),)


def test_what_cannot_be_a_call_without_marks_is_said_at_once() -> None:
    parser = parser_of()
    assert said(parser.push('{"title')) == []
    assert said(parser.push('": "x')) == ['{"title": "x']


def test_a_schema_that_takes_forever_allows_nothing() -> None:
    levels = {f"a{n}": {"allOf": [{"$ref": f"#/$defs/a{n + 1}"}] * 2} for n in range(40)}
    schema = {"type": "object", "$ref": "#/$defs/a0", "$defs": {**levels, "a40": {}}}
    text = '{"name": "f", "arguments": {}}'
    assert read([text], parser_of(schemas={"f": schema})) == (Content(text),)


TEMPLATE = load_response_template(
    {
        "version": 1,
        "start_anchor": "<|assistant|>",
        "fields": {
            "thinking": {"open": "<think>", "close": "</think>"},
            "content": {"close": "<|end|>"},
            "tool_calls": {
                "open": "<call>",
                "close": "</call>",
                "repeats": True,
                "content": "json",
                "transform": {"type": "function", "function": "{content}"},
            },
        },
    },
    "a test",
)


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Yes. ", [Content("Yes. ")]),
        (
            '<think>\nhm </call>\n</think>\n\nYes <call>{"name": "weather", "arguments": {"city": "</call>"}}</call>',
            [Reasoning("hm </call>"), Content("Yes"), *call(0, "weather", '{"city": "</call>"}')],
        ),
        ('<call>{"name": "now"}</call><call>{"name": "now"}</call>', [*call(0, "now", "{}"), *call(1, "now", "{}")]),
        ("a <call>no json</call> b", [Content("a <call>no json</call> b")]),
        ('a <call>{"name": "now"', [Content('a <call>{"name": "now"')]),
        (BARE, call(0, "weather", CITY)),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_tokenizers_own_template(text: str, expected: list[Part], size: int) -> None:
    wanted = CallsWanted(schemas={"weather": {}, "now": {}}, make_id=lambda _, number: f"id{number}")
    parser = TemplateParser(TEMPLATE, wanted, "<|user|>Hi<|assistant|>")
    assert list(read([text[at : at + size] for at in range(0, len(text), size)], parser)) == expected


def test_a_tokenizers_own_template_knows_of_a_thought_that_the_prompt_opens() -> None:
    parser = TemplateParser(TEMPLATE, CallsWanted(), "<|user|>Hi<|assistant|><think>")
    assert parser.is_reasoning
    assert read(["hm</think>Yes"], parser) == (Reasoning("hm"), Content("Yes"))
