"""Reasoning and tool calls out of text, however the text was cut into pieces."""

import itertools
import json
import random
from collections.abc import Callable, Iterable

import pytest

from server.parsing.families import call_parser, family_of
from server.parsing.forced import NamedParser, RequiredParser
from server.parsing.parts import (
    CallArguments,
    CallStart,
    CallWriter,
    Content,
    Parser,
    Part,
    PlainParser,
    Reasoning,
    merged,
)
from server.parsing.thinking import ThinkingParser, thinks

Make = Callable[[], Parser]


def ids() -> Callable[[], str]:
    numbers = itertools.count()
    return lambda: f"id{next(numbers)}"


def family(name: str, max_calls: int | None = None) -> Make:
    return lambda: call_parser(name, frozenset({"add", "sub"}), ids(), max_calls)  # type: ignore[arg-type]


def parse(make: Make, pieces: Iterable[str]) -> tuple[Part, ...]:
    parser = make()
    parts: list[Part] = []
    for piece in pieces:
        parts += parser.push(piece)
        if parser.is_done:
            break
    return merged([*parts, *parser.flush()])


def call(index: int, name: str, arguments: str) -> list[Part]:
    return [CallStart(index, f"id{index}", name), CallArguments(index, arguments)]


def check(make: Make, text: str, expected: list[Part]) -> None:
    """Whole, by character, and cut at random the text has the same parts."""
    assert parse(make, [text]) == tuple(expected)
    assert parse(make, text) == tuple(expected)
    rng = random.Random(text)
    for _ in range(20):
        cuts = sorted({0, len(text), *(rng.randrange(len(text) + 1) for _ in range(4))})
        assert parse(make, [text[a:b] for a, b in itertools.pairwise(cuts)]) == tuple(expected)


ADD = '{"name": "add", "arguments": {"a": 1, "b": "x}\\"{"}}'
SUB = '{"arguments": {"a": [1, {}]}, "name": "sub"}'
A, B = '{"a": 1, "b": "x}\\"{"}', '{"a": [1, {}]}'


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("just text", [Content("just text")]),
        ("a < b <tool and <tool_cal", [Content("a < b <tool and <tool_cal")]),
        (f"<tool_call>\n{ADD}\n</tool_call>", call(0, "add", A)),
        (f"Sure. \n<tool_call>{ADD}</tool_call>", [Content("Sure."), *call(0, "add", A)]),
        (
            f"<tool_call>\n{ADD}\n</tool_call>\n<tool_call>\n{SUB}\n</tool_call>",
            [*call(0, "add", A), *call(1, "sub", B)],
        ),
        ('<tool_call>{"name": "add", "arguments": {"a": 1', call(0, "add", '{"a": 1')),
        ('<tool_call>{"name": "add", "arguments": "{\\"a\\": 2}"}</tool_call>', call(0, "add", '{"a": 2}')),
        ("<tool_call>no json</tool_call> after", [Content("<tool_call>no json</tool_call> after")]),
        ('<tool_call>{"x": 1}</tool_call>', [Content('<tool_call>{"x": 1}</tool_call>')]),
        ('<tool_call>{"name": "add"}</tool_call>', [CallStart(0, "id0", "add")]),
    ],
    ids=lambda value: str(value)[:40],
)
def test_hermes_calls(text: str, expected: list[Part]) -> None:
    check(family("hermes"), text, expected)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain {text}", [Content("plain {text}")]),
        ('{"name": "add", "parameters": {"a": 1}}', call(0, "add", '{"a": 1}')),
        ('<|python_tag|>{"name": "add", "parameters": {"a": 1}}', call(0, "add", '{"a": 1}')),
        (
            '{"name": "add", "parameters": {"a": 1}}; {"name": "sub", "parameters": {}}',
            [*call(0, "add", '{"a": 1}'), *call(1, "sub", "{}")],
        ),
        ('{"name": "Tom", "age": 3}', [Content('{"name": "Tom", "age": 3}')]),
        ('{"title": "x"}', [Content('{"title": "x"}')]),
        ('{"name": "ad', [Content('{"name": "ad')]),
    ],
    ids=lambda value: str(value)[:40],
)
def test_llama_calls(text: str, expected: list[Part]) -> None:
    check(family("llama3"), text, expected)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain [TOOL", [Content("plain [TOOL")]),
        (f"[TOOL_CALLS][{ADD}, {SUB}]", [*call(0, "add", A), *call(1, "sub", B)]),
        (f"Yes\n[TOOL_CALLS] [{ADD}]", [Content("Yes"), *call(0, "add", A)]),
        ('[TOOL_CALLS]add[ARGS]{"a": {"b": 1}}', call(0, "add", '{"a": {"b": 1}}')),
        (
            '[TOOL_CALLS]add[CALL_ID]x1[ARGS]{"a": 1}[TOOL_CALLS]sub[ARGS]{}',
            [*call(0, "add", '{"a": 1}'), *call(1, "sub", "{}")],
        ),
        ("[TOOL_CALLS]add", [Content("[TOOL_CALLS]add")]),
    ],
    ids=lambda value: str(value)[:40],
)
def test_mistral_calls(text: str, expected: list[Part]) -> None:
    check(family("mistral"), text, expected)


def test_one_call_is_enough_where_parallel_ones_are_not_wanted() -> None:
    check(family("hermes", 1), f"<tool_call>{ADD}</tool_call><tool_call>{SUB}</tool_call>", call(0, "add", A))
    check(family("mistral", 1), f"[TOOL_CALLS][{ADD}, {SUB}]", call(0, "add", A))
    two = '{"name": "add", "parameters": {}}; {"name": "sub", "parameters": {}}'
    check(family("llama3", 1), two, call(0, "add", "{}"))


def test_forced_calls_are_the_whole_reply() -> None:
    text = f"[{ADD.replace('arguments', 'parameters')}, {SUB.replace('arguments', 'parameters')}]"
    check(lambda: RequiredParser(CallWriter(ids())), text, [*call(0, "add", A), *call(1, "sub", B)])
    check(lambda: NamedParser(CallWriter(ids()), "add"), A, call(0, "add", A))
    assert json.loads(A)["b"] == 'x}"{'


@pytest.mark.parametrize(
    ("text", "starts_inside", "expected"),
    [
        ("no thoughts", False, [Content("no thoughts")]),
        ("<think>\nhm, so\n</think>\n\nyes </think>", False, [Reasoning("hm, so"), Content("yes </think>")]),
        ("  <think>hm</think>yes", False, [Reasoning("hm"), Content("yes")]),
        ("hm, so\n</think>\n\nyes", True, [Reasoning("hm, so"), Content("yes")]),
        ("<think>never ends </thin", False, [Reasoning("never ends </thin")]),
        ("<thi", False, [Content("<thi")]),
        (" a <think> b", False, [Content(" a <think> b")]),
    ],
    ids=lambda value: str(value)[:40],
)
def test_thoughts_are_split_from_what_is_said(text: str, starts_inside: bool, expected: list[Part]) -> None:
    check(lambda: ThinkingParser(PlainParser(), starts_inside), text, expected)


def test_a_model_may_think_and_then_call() -> None:
    text = f"<think>add them</think>\n<tool_call>{ADD}</tool_call>"
    make = family("hermes")
    check(lambda: ThinkingParser(make(), False), text, [Reasoning("add them"), *call(0, "add", A)])


def test_the_family_is_read_off_the_template() -> None:
    assert family_of("{{ '[TOOL_CALLS]' }}") == "mistral"
    assert family_of("{{ '<|python_tag|>' }}") == "llama3"
    assert family_of("{{ '<tool_call>' }}") == family_of("nothing") == "hermes"
    assert thinks("</think>")
    assert not thinks("plain")
