"""Custom tools' grammars of free text, as they are let through in the calls of every family."""

from __future__ import annotations

from typing import Any

import pytest

from decoding.core.grammar import Grammar
from decoding.sampling.grammar.source import matcher_of
from server.grammars.call_grammar import CallGrammar
from server.grammars.lark_rules import LarkRules
from server.http.errors import ApiError
from server.parsing.reply_format import families
from server.schemas.tools import TextForm
from tests.server.grammars.call_texts import call_pieces
from tests.server.grammars.test_schema import Library

PATCHES = r"""
start: begin hunk+ end
begin: "*** Begin Patch" LF
end: "*** End Patch" LF?
hunk: add | update
add: "*** Add File: " name LF ("+" /(.*)/ LF)+
update: "*** Update File: " name LF change+
name: /(.+)/
change: ("@@" | "@@ " /(.+)/ | ("+" | "-" | " ") /(.*)/) LF -> line
%import common.LF
"""
SUMS = r"""
// sums of numbers, in brackets in brackets
start: sum
?sum: atom (("+" | "-") atom)*
atom: NUMBER | "(" sum ")"
NUMBER: DIGIT+
%import common (DIGIT, WS)
%ignore WS
"""
UPDATE = '*** Begin Patch\n*** Update File: a.py\n@@\n-print("h\\n")\n+print("é\\t")\n*** End Patch\n'
CASES: list[tuple[str, TextForm, list[str], list[str]]] = [
    ("patches", TextForm("lark", PATCHES), [UPDATE], ["hello", UPDATE[:-20], UPDATE + "more"]),
    ("sums", TextForm("lark", SUMS), ["1", "(1 + (22-3))", " 7"], ["", "(1", "1 +", "a"]),
    ("words", TextForm("lark", 'start: ("YES"i | A)~1..2\nA: "a" "b"?'), ["yes", "abYES", "aa"], ["", "b", "aaa"]),
    ("classes", TextForm("regex", r"[^a\\]+|\d{2}\\"), ["b\t\u201c", '"\n', "12\\\\"[:3]], ["a", "1\\\\"[:2] + "a"]),
    ("anything", TextForm("regex", r"(?s:.)*"), ["", 'any "text"\n\\ at all'], []),
]
FAMILIES = [name for name, family in families().items() if family.calls]


@pytest.fixture(scope="module")
def library() -> Library:
    return Library()


def grammar_of(family: str, form: TextForm) -> Grammar:
    rules = LarkRules(lambda _: None)
    grammar = CallGrammar(rules, families()[family].calls[0], {"do": {"type": "object"}}, {"do": form})
    return Grammar("lark", rules.text(grammar.calls(1)))


def call_of(family: str, text: str) -> str:
    return "".join(piece.text for piece in call_pieces(families()[family].calls[0], [("do", {"input": text})]))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("form", "fitting", "others"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_a_call_has_what_the_grammar_allows_in_every_family(
    library: Library, family: str, form: TextForm, fitting: list[str], others: list[str]
) -> None:
    grammar = grammar_of(family, form)
    for text, expected in [*((each, True) for each in fitting), *((each, False) for each in others)]:
        matcher = matcher_of(grammar, library.file)
        ids = library.tokenizer.encode(call_of(family, text), add_special_tokens=False)
        fits = matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()
        assert fits == expected, (family, text)


@pytest.mark.parametrize(
    ("definition", "said"),
    [
        ("start: other", "refers to other, which it does not have"),
        ("%import common.MOON\nstart: MOON", "imports MOON, which is not known here"),
        ('other: "a"', "has no rule start"),
        ("start: $", "cannot be read at '$'"),
        ('start: A\nA: b\nb: "x"', "has a terminal, A, that refers to a rule, b"),
        ("start: /(?=a)/", "has a part that cannot be written inside JSON"),
        ('start: "\\u0001"i', "has a part that cannot be written inside JSON"),
    ],
)
def test_a_grammar_that_cannot_be_read_is_refused_by_its_tool(definition: str, said: str) -> None:
    with pytest.raises(ApiError) as refused:
        grammar_of("hermes", TextForm("lark", definition))
    assert refused.value.message.startswith(f"The grammar of the tool 'do' {said}"), refused.value.message
    assert (refused.value.param, refused.value.code) == ("tools", "invalid_grammar")


def test_long_grammars_take_linear_work() -> None:
    chain = "".join(f"r{number}: r{number + 1}\n" for number in range(5_000))
    grammar_of("hermes", TextForm("lark", f'start: r0\n{chain}r5000: "x"'))
    circle = "".join(f"r{number}: r{number + 1}\n" for number in range(5_000))
    grammar_of("hermes", TextForm("lark", f'start: r0\n{circle}r5000: r0 | "x"'))
    unclosed: Any = "(" * 50_000
    with pytest.raises(ApiError):
        grammar_of("hermes", TextForm("lark", f"start: {unclosed}$"))
