"""Reads the input of a custom tool's call out of the JSON text of its arguments, piece by piece. Pure.

Where a model wrote other arguments than {"input": "..."}, its only string is the input, and otherwise the JSON text.
"""

from __future__ import annotations

import json
import re
from contextlib import suppress

BEGIN = re.compile(r'\s*\{\s*"input"\s*:\s*"')
# As much of a string as is whole: half of a surrogate pair waits for the other one.
HIGH = r"\\u[dD][89abAB][0-9a-fA-F]{2}"
PAIR = rf"{HIGH}(?:\\u[0-9a-fA-F]{{4}}|(?=[^\\]|\\[^u]))"
WHOLE = re.compile(rf'(?:[^"\\]++|\\[^u]|\\u(?![dD][89abAB])[0-9a-fA-F]{{4}}|{PAIR})*+')
CUT = re.compile(rf"(?:{HIGH})?(?:\\(?:u[0-9a-fA-F]{{0,3}})?)?")


class InputText:
    def __init__(self) -> None:
        self._held = ""  # not read yet; all of it, where the string has not begun
        self._has_begun = self._has_ended = False

    def push(self, arguments: str) -> str:
        """What the next piece of the arguments adds to the input."""
        if self._has_ended:
            return ""
        self._held += arguments
        if not self._has_begun:
            begin = BEGIN.match(self._held)
            if begin is None:
                return ""
            self._has_begun = True
            self._held = self._held[begin.end() :]
        whole = WHOLE.match(self._held)
        assert whole is not None
        self._held = self._held[whole.end() :]
        self._has_ended = self._held.startswith('"')
        return _unescaped(whole[0])

    def flush(self) -> str:
        """What is left of the input where the arguments end; half of an escape is dropped."""
        if not self._has_begun:
            return _only_text(self._held)
        return "" if self._has_ended or CUT.fullmatch(self._held) else _unescaped(self._held)


def _unescaped(text: str) -> str:
    with suppress(ValueError):  # where an escape is none of JSON's
        text = json.loads(f'"{text}"', strict=False)
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _only_text(arguments: str) -> str:
    try:
        value = json.loads(arguments, strict=False)
    except (ValueError, RecursionError):
        return arguments
    texts = [each for each in value.values() if isinstance(each, str)] if isinstance(value, dict) else [value]
    return _unescaped(json.dumps(texts[0])[1:-1]) if len(texts) == 1 and isinstance(texts[0], str) else arguments
