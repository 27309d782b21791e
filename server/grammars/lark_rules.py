"""Collects the rules of a grammar in llguidance's dialect of Lark: fixed text, special tokens, text up to a mark, JSON.

Knows nothing of calls. Invariant: a body has one name, so that what is wanted twice is compiled once.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

# The separators with which models were trained to write JSON; the grammar allows no other white space.
JSON_STYLE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
ANY_TEXT = "/(?s:.*)/"
SPECIAL_LETTERS = re.compile(r"[\\.+*?()|\[\]{}^$#&\-~/]")
SLASH_OR_LINE = re.compile(r"\\.|/|\n", re.DOTALL)  # or another letter that is escaped
SLASHED = {"/": "\\/", "\n": "\\n"}

Fixed = Sequence[str | int]  # text, and ids of special tokens


class LarkRules:
    """special_id: the id of a special token by its name, None for text that is none. Text never matches such a token,
    whatever its name spells."""

    def __init__(self, special_id: Callable[[str], int | None]) -> None:
        self._special_id = special_id
        self._names: dict[str, str] = {}  # by body, with the options before it
        self._bodies: dict[str, str] = {}  # by name
        self._fixed: dict[str, Fixed] = {}

    def text(self, start: str) -> str:
        """The whole grammar, which begins with this body."""
        return "".join(f"{name}{body}\n" for name, body in {"start": f": {start}", **self._bodies}.items())

    def rule(self, body: str, options: str = "") -> str:
        return self._named(f"{options}: {body}", "r")

    def terminal(self, body: str) -> str:
        return self._named(f": {body}", "T")

    def reserved(self) -> str:
        """The name of a rule that may refer to itself, whose body `define` gives."""
        return self._new("", "r")

    def define(self, name: str, body: str) -> None:
        self._bodies[name] = f": {body}"

    def json(self, schema: Mapping[str, Any]) -> str:
        """A value of this schema, which may bring llguidance's own options."""
        style = JSON_STYLE | schema.get("x-guidance", {})
        return self.rule(f"%json {json.dumps({**schema, 'x-guidance': style}, ensure_ascii=False)}")

    def fixed(self, text: str) -> Fixed:
        """The text in pieces: the ids of the special tokens that it names, and what is between them."""
        if text not in self._fixed:
            self._fixed[text] = tuple(self._pieces(text))
        return self._fixed[text]

    def mark(self, text: str) -> str:
        return written(self.fixed(text))

    def text_to(self, mark: str, contents: Sequence[str] = (), length: str = "", opening: str = "") -> str:
        """Text and the mark that closes it, which is not in the text. contents: terminals, all of which the text is;
        length: how many characters it has, as a regular expression says it; opening: text before it, in which there is
        no special token."""
        first, *rest = self.fixed(mark)
        counted = [f"/(?s:.{length})/"] if length else []
        if isinstance(first, int):
            inside = self.terminal(" & ".join([*contents, *counted, without([escaped(mark.split()[0])])]))
            return " ".join(filter(None, (opening and quoted(opening), inside, written([first, *rest]))))
        if length:  # the first mark ends it; that none is in the text would cost llguidance too much to know
            word = first.split()[0]
            before, after = first.split(word, 1)
            end, rest = quoted(before + word), [after, *rest]
            inside = self.terminal(" & ".join([*counted, *contents]))
        else:
            end = quoted(first)
            inside = self.terminal(" & ".join([*contents, without([escaped(first.split()[0])])]))
        whole = self.terminal(" ".join(filter(None, (opening and quoted(opening), inside, end))))
        return " ".join(filter(None, (self.rule(whole, "[lazy]"), written([piece for piece in rest if piece]))))

    def _pieces(self, text: str) -> Iterable[str | int]:
        plain = ""
        start = 0
        while start < len(text):
            ends = range(len(text), start, -1) if not text[start].isalnum() else ()
            found = next(
                ((end, token) for end in ends if (token := self._special_id(text[start:end])) is not None), None
            )
            if found is None:
                plain += text[start]
                start += 1
                continue
            if plain:
                yield plain
            plain = ""
            start, token = found
            yield token
        if plain:
            yield plain

    def _named(self, body: str, kind: str) -> str:
        if body not in self._names:
            self._names[body] = self._new(body, kind)
        return self._names[body]

    def _new(self, body: str, kind: str) -> str:
        name = f"{kind}{len(self._bodies)}"
        self._bodies[name] = body
        return name


def quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def written(pieces: Fixed) -> str:
    return " ".join(quoted(piece) if isinstance(piece, str) else f"<[{piece}]>" for piece in pieces)


def escaped(text: str) -> str:
    """A regular expression of this text."""
    return SPECIAL_LETTERS.sub(r"\\\g<0>", text).replace("\n", "\\n")


def expression(pattern: str) -> str:
    """A regular expression as a terminal's body."""
    return f"/{re.sub(SLASH_OR_LINE, lambda found: SLASHED.get(found[0][-1], found[0]), pattern)}/"


def without(expressions: Sequence[str], beginnings: Sequence[str] = ()) -> str:
    """Text in which none of the regular expressions is found, and which begins with none of the other ones."""
    parts = [ANY_TEXT]
    if expressions:
        parts.append(f"~/(?s:.*)({'|'.join(expressions)})(?s:.*)/")
    if beginnings:
        parts.append(f"~/\\s*({'|'.join(beginnings)})(?s:.*)/")
    return " & ".join(parts)
