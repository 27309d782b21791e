"""Writes the grammar of text in which calls may come: whatever follows the mark that opens them must be a call.

Invariant: what the reader of replies takes for a call is one in the grammar. So marks that the format reads but does
not write, and names of special tokens that text spells, cannot come in text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from server.grammars.call_grammar import CallGrammar, beginning
from server.grammars.lark_rules import LarkRules, escaped, without, written
from server.parsing.reply_format import CallForm, ReplyFormat

SPACES = "\\s*"  # a regular expression of what a reader passes over between words


@dataclass(frozen=True, slots=True)
class Opening:
    """The first words of calls, as many as tell them from other marks. rest: what comes after them before a slot."""

    words: tuple[str, ...]
    rest: str

    @property
    def expression(self) -> str:
        return SPACES.join(map(escaped, self.words))


class FreeText:
    """grammar: of the form that the format writes; names: the functions'."""

    def __init__(self, rules: LarkRules, format_: ReplyFormat, grammar: CallGrammar, names: Iterable[str]) -> None:
        self._rules = rules
        self._format = format_
        self._grammar = grammar
        self._openings = [each for form in format_.calls for each in self._openings_of(form)]
        wholes = [form for form in format_.calls if form.is_whole_reply]
        firsts = [SPACES.join(map(escaped, beginning(form, name))) for form in wholes for name in names]
        firsts += [escaped(opening) for opening, _ in format_.thoughts if self._token(opening) is None]
        self._allowed = without(self._barred_texts(), list(dict.fromkeys(firsts)))

    def reply(self) -> str:
        """Text and calls; where calls can only be a whole reply, one of the two."""
        rules, form = self._rules, self._format.calls[0]
        text = rules.terminal(self._allowed)
        tokens = " | ".join(written([token]) for token in self._tokens())  # a range would hide that a mark begins
        pieces = [f"{text}? ({tokens})"] if tokens else []
        if not form.is_whole_reply:
            pieces.append(self._text_and_calls(form, text))
        free = f"({' | '.join(pieces)})* {text}?" if pieces else f"{text}?"
        return f"({self._grammar.calls_of_whole_reply()} | {free})" if form.is_whole_reply else free

    def _text_and_calls(self, form: CallForm, text: str) -> str:
        calls = self._grammar.after_opening(None if form.before or form.after else 1)
        first, *rest = self._rules.fixed(form.before or form.pieces[0].text)
        if isinstance(first, int):
            return f"{text}? <[{first}]> {written(rest)} {calls}"
        opening = self._openings[0]
        to_opening = self._rules.terminal(f"{text} /{opening.expression}/")
        return f"{self._rules.rule(to_opening, '[lazy]')} {self._rules.mark(opening.rest)} {calls}"

    def _openings_of(self, form: CallForm) -> Iterator[Opening]:
        if form.is_whole_reply:
            return
        others = [*self._format.frames, *(opening for opening, _ in self._format.thoughts)]
        marks = ["".join(other.split()) for other in others]
        for text in filter(str.strip, (form.before, form.pieces[0].text)):
            words = text.split()
            size = 1
            while size < len(words) and any(mark.startswith("".join(words[:size])) for mark in marks):
                size += 1
            rest = re.split(SPACES.join(map(re.escape, words[:size])), text, maxsplit=1)[1]
            yield Opening(tuple(words[:size]), rest)

    def _barred_texts(self) -> list[str]:
        """Regular expressions of what text may not have in it: marks, also after the special tokens in them."""
        barred = [opening.expression for opening in self._openings]
        for opening in self._openings:
            token, *after = self._rules.fixed(" ".join(opening.words))
            if isinstance(token, int) and opening.words[1:]:  # the token may come in text, but not what follows it
                barred.append(SPACES.join(map(escaped, written_out(after))))
        return list(dict.fromkeys(barred))

    def _tokens(self) -> list[int]:
        """The special tokens that may come in text."""
        barred = {self._token(opening.words[0]) for opening in self._openings if not opening.words[1:]}
        named = {piece for mark in self._format.marks for piece in self._rules.fixed(mark) if isinstance(piece, int)}
        return sorted(named - barred)

    def _token(self, text: str) -> int | None:
        """The special token with which text begins, if it begins with one."""
        first = self._rules.fixed(text)[0]
        return first if isinstance(first, int) else None


def written_out(pieces: Sequence[str | int]) -> list[str]:
    return [word for piece in pieces if isinstance(piece, str) for word in piece.split()]
