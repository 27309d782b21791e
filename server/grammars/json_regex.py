"""Writes a regular expression of texts as one of the same texts inside a JSON string, between its quotes.

Characters that JSON escapes (quotation marks, backslashes, control characters) become their escapes, also in classes.
"""

from __future__ import annotations

import json
import re
import warnings

from server.grammars.lark_rules import escaped

ESCAPED = [*map(chr, range(32)), '"', "\\"]
PLAIN = r'[^\x00-\x1f"\\]'
# A group's beginning, a repetition, a character by its number, an escape, a class, or a letter.
TOKEN = re.compile(
    r"\(\?[a-zA-Z-]*[:)]|\(\?.|\{[0-9,]+\}|\\x\{[0-9a-fA-F]+\}|\\x[0-9a-fA-F]{2}|\\u[0-9a-fA-F]{4}|\\[pP](?:\{[^}]*\}|.)"
    r"|\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|.",
    re.DOTALL,
)
OPERATORS = frozenset("()|*+?")
SETS = frozenset({"\\d", "\\D", "\\w", "\\W", "\\s", "\\S"})
LETTERS = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v", "a": "\a", "0": "\0"}


def json_regex(pattern: str, has_all: bool = False) -> str:
    """The expression inside JSON. has_all: a dot is also a line's end. Raises ValueError that names the part which
    cannot be written so."""
    written, dots = [], [has_all]  # dots: of each open group, whether a dot is any character
    for token in TOKEN.findall(pattern):
        if token.startswith("(?"):
            has_all = _has_all(token, dots[-1])
            if token.endswith(")"):
                dots[-1] = has_all
                continue
            dots.append(has_all)
            written.append("(?:")
        elif token in OPERATORS or token.startswith("{"):
            dots += [dots[-1]] if token == "(" else []
            if token == ")" and len(dots) > 1:
                dots.pop()
            written.append(token)
        elif token == ".":
            written.append(_class(r"[\s\S]" if dots[-1] else r"[^\n]"))
        elif token in SETS or token[0] == "[":
            written.append(_class(token))
        else:
            written.append(escaped(in_json(_letter(token))))
    return "".join(written)


def in_json(text: str) -> str:
    """The text as it stands between a JSON string's quotes."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _has_all(group: str, has_all: bool) -> bool:
    on, _, off = group[2:-1].partition("-")
    if group[-1] not in ":)" or set(on + off) - {"s", "u"}:
        raise ValueError(group)
    return "s" in on or (has_all and "s" not in off)


def _letter(token: str) -> str:
    if len(token) == 1 and token not in "^$":
        return token
    if token[:2] in ("\\x", "\\u"):
        return chr(int(token[2:].strip("{}"), 16))
    if token[0] == "\\" and (token[1] in LETTERS or not token[1].isalnum()):
        return LETTERS.get(token[1], token[1])
    raise ValueError(token)


def _class(expression: str) -> str:
    """A class of characters: those that JSON leaves as they are, or the escapes of those that it does not."""
    if re.search(r"\\[pPxX]|&&|--|~~|(?<!^)(?<!\\)\[", expression):
        raise ValueError(expression)
    try:
        with warnings.catch_warnings(action="ignore"):
            has = re.compile(expression, re.DOTALL).match
    except re.error:
        raise ValueError(expression) from None
    escapes = [escaped(in_json(letter)) for letter in ESCAPED if has(letter)]
    return f"(?:{'|'.join([f'[{expression}&&{PLAIN}]', *escapes])})"
