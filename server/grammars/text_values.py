"""Writes the grammar of a call's only argument, a text of a form of its own, in every format of calls."""

from __future__ import annotations

from typing import Any

from server.grammars.lark_rules import LarkRules, quoted
from server.grammars.text_grammar import TextGrammar
from server.parsing.reply_format import CallForm

NAME = "input"


class TextValues:
    """The same methods as `ArgumentValues` has; the schema is not read."""

    def __init__(self, rules: LarkRules, form: CallForm, text: TextGrammar) -> None:
        self._rules = rules
        self._form = form
        self._text = text

    def whole(self, _: Any) -> str:
        return self._between(f'{{"{NAME}": "', '"}')

    def keywords(self, _: Any) -> str:
        return self._between(f'{NAME}="', '"')

    def loose(self, _: Any) -> str:
        mark = self._form.strings
        return f"{quoted(f'{{{NAME}:')} {self._rules.mark(mark)} {self._text.to(mark)} {quoted('}')}"

    def parameters(self, _: Any) -> str:
        before, _, middle, _, after = (piece.text for piece in self._form.parameter_pieces)
        rules = self._rules
        return f"{rules.mark(before)} {quoted(NAME)} {rules.mark(middle)} {self._text.to(after)}"

    def _between(self, before: str, after: str) -> str:
        return f"{quoted(before)} {self._text.inside_json()} {quoted(after)}"
