"""What the grammar library lets through of replies that call tools, in the format of every family."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from llguidance import LLMatcher, LLTokenizer
from tokenizers import AddedToken, Tokenizer

import decoding
from decoding.core.tree import Source, root_only
from decoding.costs.price import DraftBudget
from decoding.drafting.grammar import TreeGrammar
from decoding.sampling.grammar.matcher import CompiledGrammar
from server.config import ServerSettings
from server.grammars.chat_constraint import chat_constraint
from server.grammars.constraint import Constraint
from server.http.errors import ApiError
from server.parsing.reply_format import ReplyFormat, families
from server.schemas.chat import ChatRequest
from tests.decoding.drafting.one_tree.growing import request_of
from tests.server.grammars.call_texts import Call, Piece, call_pieces

BOX: Any = {
    "type": "object",
    "properties": {"x": {"type": "number"}, "label": {"type": "string"}, "inner": {"$ref": "#/$defs/Box"}},
    "required": ["x"],
    "additionalProperties": False,
}
WEATHER: Any = {
    "name": "weather",
    "strict": True,
    "parameters": {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer"},
            "unit": {"enum": ["c", "f"]},
            "tags": {"type": "array", "items": {"type": "string"}},
            "box": {"$ref": "#/$defs/Box"},
            "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            "sure": {"type": "boolean"},
        },
        "required": ["city"],
        "$defs": {"Box": BOX},
    },
}
TIME: Any = {"name": "time", "parameters": {"type": "object", "properties": {}}}
TOOLS: Any = [{"type": "function", "function": each} for each in (WEATHER, TIME)]
STRICT: Any = {"tools": TOOLS}
REQUIRED: Any = {"tools": TOOLS, "tool_choice": "required"}
NAMED: Any = {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "weather"}}}
FORM: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}
ALL = {
    "city": "São\n Paulo",
    "days": 3,
    "unit": "f",
    "tags": ["a", "b"],
    "box": {"x": 1.5, "label": "b", "inner": {"x": 2}},
    "note": None,
    "sure": True,
}
UNDECIDED = ': "'  # letters at the end of forced text that the next token may begin with
FAMILIES = sorted(name for name, family in families().items() if family.calls)
MARK = re.compile(r"<[^<>=\s]*[|｜][^<>\s]*>|\[/?[A-Z_]+\]|</?(?:think|tool_call|arg_key|arg_value)>")


@dataclass(frozen=True)
class Model:
    """A tokenizer in which the marks of all families are special tokens, or none is."""

    tokenizer: Tokenizer
    plain: Tokenizer
    ll_tokenizer: Any
    special: dict[str, int]
    compiled: dict[str, LLMatcher] = field(default_factory=dict)

    def encode(self, pieces: Sequence[Piece]) -> list[int]:
        return [
            token
            for piece in pieces
            for token in (self.tokenizer if piece.is_mark else self.plain).encode(piece.text).ids
        ]

    def matcher(self, constraint: Constraint) -> LLMatcher:
        text = constraint.grammar.text
        if text not in self.compiled:
            self.compiled[text] = LLMatcher(self.ll_tokenizer, text)
            assert not self.compiled[text].is_error(), (self.compiled[text].get_error(), text)
        return self.compiled[text].deep_copy()

    def read(self, constraint: Constraint, pieces: Sequence[Piece]) -> str:
        """How far the grammar lets the pieces come: "whole", "open" where the reply may not end there, or "refused"."""
        matcher, tokens = self.matcher(constraint), self.encode(pieces)
        if matcher.try_consume_tokens(tokens) < len(tokens):
            return "refused"
        return "whole" if matcher.is_accepting() else "open"


@pytest.fixture(scope="module", params=["text", "special"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    path = Path(decoding.__file__).parent / "gosling" / "tokenizer.json"
    tokenizer, plain = Tokenizer.from_file(str(path)), Tokenizer.from_file(str(path))
    marks = sorted({found for name in families() for mark in format_of(name).marks for found in MARK.findall(mark)})
    if request.param == "special":
        tokenizer.add_tokens([AddedToken(mark, special=mark[0] != "<") for mark in marks])
        path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
        tokenizer.save(str(path))
    ids = {mark: token for mark in marks if (token := tokenizer.token_to_id(mark)) is not None}
    return Model(tokenizer, plain, LLTokenizer(str(path), n_vocab=tokenizer.get_vocab_size(), eos_token=[0]), ids)


def format_of(name: str) -> ReplyFormat:
    family = families()[name]
    return ReplyFormat(calls=family.calls, thoughts=family.thoughts, frames=family.frames)


def constrained(model: Model, fields: Any, format_: ReplyFormat, open_thought: str = "") -> Constraint | None:
    body = ChatRequest.model_validate({"messages": [{"role": "user", "content": "a"}]} | fields)
    tools = body.callable_tools
    return chat_constraint(body, tools, format_, open_thought, model.special.get, ServerSettings())


def constraint_of(model: Model, fields: Any, format_: ReplyFormat, open_thought: str = "") -> Constraint:
    found = constrained(model, fields, format_, open_thought)
    assert found is not None
    return found


def pieces_of(name: str, *calls: Call) -> list[Piece]:
    return call_pieces(format_of(name).calls[0], calls)


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("fields", [REQUIRED, STRICT], ids=["required", "strict"])
def test_calls_that_fit_are_whole_replies(model: Model, name: str, fields: Any) -> None:
    constraint = constraint_of(model, fields, format_of(name))
    form = format_of(name).calls[0]
    for text in ("Rome", "a } ] ) \" ' \\ b", f"<p>{form.pieces[-1].text}{form.after}</p>", "", "{1: [2"):
        assert model.read(constraint, pieces_of(name, ("weather", {"city": text}))) == "whole", text
    assert model.read(constraint, pieces_of(name, ("weather", ALL))) == "whole"
    assert model.read(constraint, pieces_of(name, ("time", {}))) == "whole"
    assert model.read(constraint, pieces_of(name, ("time", {}), ("weather", ALL), ("time", {}))) == "whole"


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("fields", [REQUIRED, STRICT], ids=["required", "strict"])
@pytest.mark.parametrize(
    "call",
    [
        ("whether", {}),
        ("weather", {}),
        ("weather", {"days": 3}),
        ("weather", {"city": "Rome", "days": "x"}),
        ("weather", {"city": "Rome", "unit": "k"}),
        ("weather", {"city": "Rome", "box": {"inner": {"x": 1}}}),
        ("weather", {"city": "Rome", "other": 1}),
    ],
    ids=repr,
)
def test_calls_that_do_not_fit_are_refused(model: Model, name: str, fields: Any, call: Call) -> None:
    form = format_of(name).calls[0]
    if fields is STRICT and form.is_whole_reply and call[0] == "whether":
        pytest.skip("a reply that begins with no tool's name is text")
    assert model.read(constraint_of(model, fields, format_of(name)), pieces_of(name, call)) == "refused"


@pytest.mark.parametrize("name", FAMILIES)
def test_where_one_call_is_wanted_there_is_one(model: Model, name: str) -> None:
    rome: Call = ("weather", {"city": "Rome"})
    for fields in (REQUIRED | {"parallel_tool_calls": False}, NAMED):
        constraint = constraint_of(model, fields, format_of(name))
        assert model.read(constraint, pieces_of(name, rome)) == "whole"
        assert model.read(constraint, pieces_of(name, rome, rome)) == "refused"
        assert model.read(constraint, []) == "open"
        assert model.read(constraint, [Piece("Sure")]) == "refused"
    assert model.read(constraint_of(model, NAMED, format_of(name)), pieces_of(name, ("time", {}))) == "refused"


@pytest.mark.parametrize("name", FAMILIES)
def test_marks_and_the_name_are_forced(model: Model, name: str) -> None:
    """They are drafted as the ids of special tokens, where they are such."""
    format_ = ReplyFormat(calls=families()[name].calls)
    pieces = pieces_of(name, ("weather", {"city": "CITY"}))
    head = "".join(piece.text for piece in pieces).split("CITY")[0]
    if "{number}" in format_.calls[0].call:  # the model counts its calls
        head = head.split(":")[0]
    compiled = CompiledGrammar(model.matcher(constraint_of(model, NAMED, format_)), frozenset([0]), 0)
    forced = compiled.new_matcher().forced()
    tree = TreeGrammar(request_of([1]), compiled.new_matcher()).revise(root_only(1), DraftBudget(len(forced)))
    assert tree.tokens[1:].tolist() == forced
    assert set(tree.sources[1:].tolist()) == {Source.GRAMMAR}
    text = model.tokenizer.decode(forced, skip_special_tokens=False)
    assert text.startswith(head[: -len(UNDECIDED)])  # another token may go on from the last letters
    assert {token for mark, token in model.special.items() if mark in head} <= set(forced)


@pytest.mark.parametrize("name", FAMILIES)
def test_an_open_thought_is_closed_before_a_call(model: Model, name: str) -> None:
    format_ = ReplyFormat(calls=families()[name].calls, thoughts=(("<think>", "</think>"),))
    call = pieces_of(name, ("weather", {"city": "Rome"}))
    thought = [Piece("hm, "), *call[:1], Piece("</think", False), *call[1:2]]
    thought = [Piece(piece.text) for piece in thought]
    closed = [*thought, Piece("</think>", True), Piece("\n\n")]
    for fields in (REQUIRED, NAMED, STRICT):
        constraint = constraint_of(model, fields, format_, "</think>")
        assert constraint.may_think
        assert model.read(constraint, thought) == "open"
        assert model.read(constraint, [*closed, *call]) == "whole"
        assert model.read(constraint, call) != "whole"
    for fields in (REQUIRED, NAMED):
        assert model.read(constraint_of(model, fields, format_, "</think>"), [*closed, Piece("No")]) == "refused"


@pytest.mark.parametrize("name", FAMILIES)
def test_a_thought_may_come_before_a_call_but_need_not(model: Model, name: str) -> None:
    thoughts = families()[name].thoughts or (("<think>", "</think>"),)
    format_ = ReplyFormat(calls=families()[name].calls, thoughts=thoughts, frames=families()[name].frames)
    call = pieces_of(name, ("weather", {"city": "Rome"}))
    opening, closing = thoughts[0]
    thought = [Piece(opening, True), Piece("hm, "), *(Piece(piece.text) for piece in call)]
    for fields in (REQUIRED, NAMED, STRICT):
        constraint = constraint_of(model, fields, format_)
        assert constraint.may_think
        assert model.read(constraint, call) == "whole"
        assert model.read(constraint, [*thought, Piece(closing, True), *call]) == "whole"
        if fields is not STRICT:
            assert model.read(constraint, thought) == "open"


def test_where_no_thought_may_come_none_can(model: Model) -> None:
    constraint = constraint_of(model, REQUIRED, ReplyFormat(calls=families()["hermes"].calls))
    assert not constraint.may_think
    assert model.read(constraint, [Piece("<think>", True)]) == "refused"


@pytest.mark.parametrize("name", FAMILIES)
def test_beside_strict_tools_other_text_is_free(model: Model, name: str) -> None:
    format_ = format_of(name)
    form = format_.calls[0]
    constraint = constraint_of(model, STRICT, format_)
    call = pieces_of(name, ("weather", {"city": "Rome"}))
    assert constraint.may_think
    for text in ("", "Any text [at] {all},\n\n <b> `def f(x):`", '{"answer": 1}', "[1, 2]"):
        assert model.read(constraint, [Piece(text)]) == "whole", text
    if not form.is_whole_reply:
        assert model.read(constraint, [Piece("Let me see.\n"), *call, Piece("\n"), *call]) == "whole"
        assert model.read(constraint, [Piece("a "), *call[:1], Piece("mark in prose")]) == "refused"
        assert model.read(constraint, [Piece("a "), *pieces_of(name, ("whether", {}))]) == "refused"
    for frame in format_.frames:
        if frame not in ("<|end|>", "<|return|>"):
            assert model.read(constraint, [Piece(frame, True), Piece("text")]) == "whole", frame


@pytest.mark.parametrize("name", FAMILIES)
def test_loose_tools_beside_strict_ones_take_any_arguments(model: Model, name: str) -> None:
    constraint = constraint_of(model, STRICT, format_of(name))
    arguments = {"zone": "CET", "n": 1, "deep": {"a": [True, None, {"b": "c"}]}}
    assert model.read(constraint, pieces_of(name, ("time", arguments))) == "whole"
    assert (
        model.read(constraint_of(model, REQUIRED, format_of(name)), pieces_of(name, ("time", arguments))) == "refused"
    )


@pytest.mark.parametrize("name", FAMILIES)
def test_beside_a_form_a_reply_is_calls_or_of_that_form(model: Model, name: str) -> None:
    call = pieces_of(name, ("weather", {"city": "Rome"}))
    for form in (FORM, {"type": "json_object"}):
        constraint = constraint_of(model, STRICT | {"response_format": form}, ReplyFormat(calls=families()[name].calls))
        assert constraint.param.startswith("response_format")
        assert not constraint.may_think
        assert model.read(constraint, [Piece('{"kind": "fox", "name": [1]}')]) == "whole"
        assert model.read(constraint, call) == "whole"
        assert model.read(constraint, [Piece("free text")]) == "refused"


def test_loose_tools_make_no_grammar(model: Model) -> None:
    assert constrained(model, {"tools": TOOLS[1:]}, format_of("hermes")) is None
    assert constrained(model, {}, format_of("hermes"), "</think>") is None


@pytest.mark.parametrize(
    ("fields", "text", "other"),
    [
        ({"response_format": FORM}, '{"a": 1}', "a"),
        ({"response_format": {"type": "json_object"}}, '{"a": 1}', "[1]"),
        ({"guided_choice": ["yes", "no / never"]}, "no / never", "maybe"),
        ({"guided_regex": r"a/[0-9/]+\/b"}, "a/12/3/b", "a/x"),
        ({"guided_grammar": 'start: word\nword: "f" /[o]+/'}, "foo", "bar"),
    ],
    ids=["schema", "object", "choice", "regex", "lark"],
)
def test_a_form_comes_after_an_open_thought(model: Model, fields: Any, text: str, other: str) -> None:
    closed = [Piece('hm, {"a": 2}'), Piece("</think>", True), Piece("\n\n")]
    constraint = constraint_of(model, fields, format_of("hermes"), "</think>")
    assert constraint.may_think
    assert model.read(constraint, closed[:1]) == "open"
    assert model.read(constraint, [*closed, Piece(text)]) == "whole"
    assert model.read(constraint, [*closed, Piece(other)]) == "refused"
    plain = constraint_of(model, fields, format_of("hermes"))
    assert (plain.may_think, plain.grammar.kind == "lark") == (False, "guided_grammar" in fields)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        (REQUIRED, "tool_choice"),
        (NAMED, "tool_choice"),
        (STRICT, "tools"),
        (REQUIRED | {"response_format": FORM}, "tool_choice"),
    ],
    ids=["required", "named", "strict", "form"],
)
def test_what_cannot_be_enforced_is_refused(model: Model, fields: Any, param: str) -> None:
    with pytest.raises(ApiError, match="--tool-parser") as caught:
        constrained(model, fields, ReplyFormat())
    assert caught.value.param == param
