"""Writes the grammar of calls in the format of a model's family.

Knows nothing of what a reply may have beside them. Invariant: fixed text is written as the family's form has it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from server.grammars.argument_values import ArgumentValues
from server.grammars.lark_rules import LarkRules, quoted
from server.grammars.schema_parts import SchemaParts
from server.grammars.text_grammar import TextGrammar
from server.grammars.text_values import TextValues
from server.parsing.reply_format import CallForm, Piece
from server.schemas.tools import TextForm

NO_TEXTS: Mapping[str, TextForm] = {}
NUMBER = "/[0-9]{1,4}/"
CALL_ID = "/[a-zA-Z0-9]{9}/"  # Mistral's
SPACE = "/[ \\n]{0,4}/"  # that may come first, as after a thought


class CallGrammar:
    """Of one form. schemas: of the arguments, by the functions' names; texts: of those that have a text of this form
    as their only argument."""

    def __init__(
        self,
        rules: LarkRules,
        form: CallForm,
        schemas: Mapping[str, Mapping[str, Any]],
        texts: Mapping[str, TextForm] = NO_TEXTS,
    ) -> None:
        self._rules = rules
        self._form = form
        self._texts = texts
        self._head, self._pieces = head_of(form)
        self._rests = {name: self._rest(name, schema) for name, schema in schemas.items()}

    def calls(self, max_calls: int | None = None) -> str:
        """At least one call. max_calls: 1, or None for any number."""
        return _row(self._rules.mark(self._form.before or self._head), self.after_opening(max_calls))

    def after_opening(self, max_calls: int | None = None) -> str:
        """Calls without the fixed text that comes first."""
        return _row(self._call() if self._form.before else self._body(), self._further(max_calls))

    def calls_of_whole_reply(self) -> str:
        """Calls whose `beginning` is one text, which tells them from other text that the reply may be."""
        beginnings = {name: quoted("".join(beginning(self._form, name))) for name in self._rests}
        firsts = (f"{self._rules.terminal(f'{SPACE} {each}')} {self._rests[name]}" for name, each in beginnings.items())
        return _row(f"({' | '.join(firsts)})", self._further(None))

    def _further(self, max_calls: int | None) -> str:
        more = "" if max_calls == 1 else f"({_row(self._rules.mark(self._form.between), self._call())})*"
        return _row(more, self._rules.mark(self._form.after))

    def _call(self) -> str:
        return _row(self._rules.mark(self._head), self._body())

    def _body(self) -> str:
        """A call without the form's first text."""
        bodies = (_row(*map(quoted, _first_texts(self._form, name)), rest) for name, rest in self._rests.items())
        return self._rules.rule(" | ".join(bodies))

    def _rest(self, name: str, schema: Mapping[str, Any]) -> str:
        """A call without its first texts."""
        rules, form = self._rules, self._form
        values: ArgumentValues | TextValues
        if name in self._texts:
            values = TextValues(rules, form, TextGrammar(rules, self._texts[name], f"The grammar of the tool '{name}'"))
        else:
            values = ArgumentValues(rules, form, SchemaParts(schema, f"The schema of the tool '{name}'"))
        rest = []
        for piece in self._pieces:
            match piece.slot:
                case "call":
                    fixed = (": ", quoted(name), ", ", quoted(form.keys[1]), ": ")
                    rest.append(_row(*map(quoted, fixed), values.whole(schema), quoted("}")))
                case "name":
                    rest.append(quoted(name))
                case "number":
                    rest.append(rules.terminal(NUMBER))
                case "id":
                    rest.append(rules.terminal(CALL_ID))
                case "arguments":
                    rest.append(values.loose(schema) if form.strings else values.whole(schema))
                case "parameters":
                    rest.append(values.parameters(schema))
                case "keywords":
                    rest.append(values.keywords(schema))
                case _:
                    rest.append(rules.mark(piece.text))
        return _row(*(rest if self._pieces[0].slot == "call" else rest[len(_first_texts(form, name)) :]))


def beginning(form: CallForm, name: str) -> list[str]:
    """The texts that tell a call of this function from other text, where calls are the whole reply."""
    return [text for text in (form.before, head_of(form)[0], *_first_texts(form, name)) if text]


def head_of(form: CallForm) -> tuple[str, tuple[Piece, ...]]:
    """The fixed text with which each call begins, and the other pieces."""
    first = form.pieces[0]
    return (first.text, form.pieces[1:]) if first.text else ("", form.pieces)


def _first_texts(form: CallForm, name: str) -> list[str]:
    """What comes first after a call's fixed text, as far as it tells a call from other text."""
    pieces = head_of(form)[1]
    if pieces[0].slot == "call":
        return ["{", quoted(form.keys[0])]
    return [name, pieces[1].text] if form.is_whole_reply else []


def _row(*parts: str) -> str:
    return " ".join(filter(None, parts))
