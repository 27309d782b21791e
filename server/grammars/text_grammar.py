"""Writes a client's grammar of free text, in Lark or as a regular expression, as a part of a grammar of calls.

A model writes the text as it is, or inside a JSON string. Invariant: all that does not refer to itself becomes one
terminal, because a JSON string's escapes begin alike, so that a lexer could not tell where one terminal ends.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from server.grammars.json_regex import in_json, json_regex
from server.grammars.lark_rules import LarkRules, expression, quoted
from server.http.errors import invalid
from server.schemas.tools import TextForm

TOKEN = re.compile(
    r"""(?P<skipped>[ \t\r\n]+|//[^\n]*|\#[^\n]*|->[ \t]*\w+)
    |%import[ \t]+common[ \t]*(?:\.[ \t]*(?P<one>\w+)|\((?P<several>[^)]*)\))(?:[ \t]*->[ \t]*(?P<alias>\w+))?
    |%ignore[ \t]+(?P<ignored>[^\n]+)
    |(?P<head>[?!]?[A-Za-z_]\w*)(?:\.-?\d+)?\s*:
    |(?P<string>"(?:[^"\\\n]|\\.)*")(?P<insensitive>i?)
    |/(?P<regex>(?:[^/\\\n]|\\.)+)/(?P<flags>[a-z]*)
    |(?P<name>[A-Za-z_]\w*)
    |(?P<sign>~[ \t]*\d+(?:[ \t]*\.\.[ \t]*\d+)?|\{\d*,?\d*\}|[()\[\]|*+?&~])""",
    re.VERBOSE,
)
IGNORED = "IGNORED TEXT"  # stands for a terminal of what is ignored
COMMON = {
    "DIGIT": "[0-9]",
    "HEXDIGIT": "[a-fA-F0-9]",
    "INT": "[0-9]+",
    "SIGNED_INT": "[+-]?[0-9]+",
    "DECIMAL": r"[0-9]+\.[0-9]*|\.[0-9]+",
    "FLOAT": r"([0-9]+\.[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+",
    "NUMBER": r"([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?",
    "SIGNED_NUMBER": r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?",
    "ESCAPED_STRING": r'"([^"\\]|\\.)*"',
    "LCASE_LETTER": "[a-z]",
    "UCASE_LETTER": "[A-Z]",
    "LETTER": "[A-Za-z]",
    "WORD": "[A-Za-z]+",
    "CNAME": "[_A-Za-z][_A-Za-z0-9]*",
    "WS_INLINE": "[ \\t]+",
    "WS": "[ \\t\\f\\r\\n]+",
    "CR": "\\r",
    "LF": "\\n",
    "NEWLINE": "(\\r?\\n)+",
    "SH_COMMENT": "#[^\\n]*",
}


class Token(NamedTuple):
    """A string (JSON, perhaps with i after it), a regular expression, a name, or a sign of Lark's."""

    kind: str
    text: str
    flags: str = ""


class TextGrammar:
    """Of one tool. owner: whose grammar it is, for a refusal, which is an ApiError about `tools`."""

    def __init__(self, rules: LarkRules, form: TextForm, owner: str) -> None:
        self._rules = rules
        self._owner = owner
        self._ignored: list[Token] = []
        self._bodies: dict[str, list[Token]] = {}
        if form.syntax == "regex":
            self._bodies["start"] = [Token("regex", form.definition)]
        else:
            self._read(form.definition)

    def to(self, mark: str) -> str:
        """The text as it is, and the mark that closes it."""
        body, is_terminal = self._written(lambda token: _as_it_is(token))
        return self._rules.text_to(mark, [body]) if is_terminal else f"{body} {self._rules.mark(mark)}"

    def inside_json(self) -> str:
        """The text inside a JSON string."""
        return self._written(self._in_json)[0]

    def _read(self, definition: str) -> None:
        at, body = 0, list[Token]()
        while at < len(definition):
            found = TOKEN.match(definition, at)
            if found is None:
                raise self._refusal(f"cannot be read at {definition[at : at + 20]!r}")
            at = found.end()
            kind = found.lastgroup
            if found["one"] or found["several"]:
                self._import(found)
            elif found["ignored"]:
                self._ignored += [Token("sign", "|")] if self._ignored else []
                self._ignored += filter(None, map(_token, TOKEN.finditer(found["ignored"])))
            elif kind == "head":
                body = self._bodies.setdefault(found["head"].lstrip("?!"), [])
            elif (token := _token(found)) is not None:
                body.append(token)

    def _import(self, found: re.Match[str]) -> None:
        for name in re.findall(r"\w+", found["one"] or found["several"]):
            if name not in COMMON:
                raise self._refusal(f"imports {name}, which is not known here")
            self._bodies[found["alias"] or name] = [Token("regex", COMMON[name])]

    def _written(self, write: Callable[[Token], str]) -> tuple[str, bool]:
        """The body of the whole text, and whether it is a terminal."""
        if not self._bodies.get("start"):
            raise self._refusal("has no rule start")
        ordered = self._in_order()
        done = frozenset(ordered)
        circular = [name for name in self._bodies if name not in done]
        names = {name: self._rules.reserved() for name in circular}
        for name in filter(str.isupper, ordered):
            names[name] = self._rules.terminal(self._joined(self._bodies[name], write, names, ""))
        ignored = self._rules.terminal(self._joined(self._ignored, write, names, "")) if self._ignored else ""
        between = f" {ignored}*" if ignored else ""
        for name in ordered:
            if not name.isupper():
                names[name] = self._rules.terminal(self._joined(self._bodies[name], write, names, between))
        for name in circular:
            self._rules.define(names[name], self._joined(self._bodies[name], write, names, between))
        if "start" in circular or not ignored:
            return f"{ignored}* {names['start']}" if ignored else names["start"], "start" not in circular
        return self._rules.terminal(f"{ignored}* {names['start']}"), True

    def _joined(
        self, tokens: Iterable[Token], write: Callable[[Token], str], names: Mapping[str, str], between: str
    ) -> str:
        """A body. between: what may follow each terminal of a rule."""
        pieces = []
        for token in tokens:
            if token.kind == "name":
                is_word = token.text.isupper()
                pieces.append(f"({names[token.text]}{between})" if is_word and between else names[token.text])
            elif token.kind == "sign":
                pieces.append(token.text)
            else:
                pieces.append(f"({write(token)}{between})" if between else write(token))
        return " ".join(pieces) or '""'

    def _in_order(self) -> list[str]:
        """The rules that do not refer to themselves, not even through others, each after those that it refers to."""
        bodies = {**self._bodies, IGNORED: self._ignored}
        used = {name: {token.text for token in body if token.kind == "name"} for name, body in bodies.items()}
        users = defaultdict(list)
        for name, others in used.items():
            for other in others:
                if other not in used:
                    raise self._refusal(f"refers to {other}, which it does not have")
                if name.isupper() and not other.isupper():
                    raise self._refusal(f"has a terminal, {name}, that refers to a rule, {other}")
                users[other].append(name)
        num_left = {name: len(others) for name, others in used.items()}
        ordered = [name for name, count in num_left.items() if not count]
        for name in ordered:  # which grows
            for user in users[name]:
                num_left[user] -= 1
                if not num_left[user]:
                    ordered.append(user)
        return [name for name in ordered if name != IGNORED]

    def _in_json(self, token: Token) -> str:
        try:
            if token.kind == "regex":
                if set(token.flags) - {"s", "u"}:
                    raise ValueError(f"/{token.flags}")
                return expression(json_regex(token.text.replace("\\/", "/"), "s" in token.flags))
            text = json.loads(token.text)
            if token.flags and in_json(text) != text:
                raise ValueError(token.text + token.flags)
            return quoted(in_json(text)) + token.flags
        except ValueError as error:
            raise self._refusal(
                f"has a part that cannot be written inside JSON, as this model calls: {error}"
            ) from None

    def _refusal(self, problem: str) -> Exception:
        return invalid(f"{self._owner} {problem}.", "tools", "invalid_grammar")


def _token(found: re.Match[str]) -> Token | None:
    if found["string"]:
        return Token("string", found["string"], found["insensitive"])
    if found["regex"]:
        return Token("regex", found["regex"], found["flags"])
    for kind in ("name", "sign"):
        if found[kind]:
            return Token(kind, found[kind])
    return None


def _as_it_is(token: Token) -> str:
    return token.text + token.flags if token.kind == "string" else expression(token.text) + token.flags
