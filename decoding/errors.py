"""The one exception tree of the engine.

GanderError
├── ConfigError          a start-up option that cannot be honoured
├── ModelRefused         a model that cannot be served, with the reason
├── PartRefused          a part of a model for which nothing can stand, which then stays as it is
├── RankDied             a process that holds a part of the model has ended, and with it what it computes
├── RequestRejected      a request that cannot be served; `param` names the field at fault
└── BrokenSequence       a request that cannot go on, while all others can
    ├── BrokenLogits     its logits are not finite, so that no token can be drawn
    └── BrokenGrammar    its grammar matcher reached its limits
"""

from __future__ import annotations

import textwrap
from collections.abc import Collection

NAMED = 3  # the most things that a sentence names
MOST_CHARS = 600  # of a message that is not ours


def in_one_line(error: BaseException) -> str:
    """An exception's whole message as one line, or its name where it has none: libraries write paragraphs, and quote
    values of any length."""
    return textwrap.shorten(str(error), MOST_CHARS, placeholder=" ...") or type(error).__name__


class GanderError(Exception):
    """Root of every error Gander raises on purpose."""


class ConfigError(GanderError):
    """A start-up option that cannot be honoured on this machine or with this model."""


class ModelRefused(GanderError):
    """The model cannot be served correctly; the message says why."""


class PartRefused(GanderError):
    """Why nothing stands for a part of a model, in words that continue "others are not: "."""


class RankDied(GanderError):
    """A process that holds a part of a divided model has ended, so that no forward can be finished."""


class RequestRejected(GanderError):
    """The caller asked for something this server does not do.

    `param` is the OpenAI field at fault, `code` a short machine-readable word.
    """

    def __init__(self, message: str, param: str | None = None, code: str = "invalid_value") -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code


class BrokenSequence(GanderError):
    """One request cannot go on. The message is for its caller, `code` a short machine-readable word."""

    code = "broken_sequence"


class BrokenLogits(BrokenSequence):
    """The logits hold NaN or infinity, or are minus infinity for every token. position: of the token to draw."""

    code = "broken_logits"

    def __init__(self, position: int) -> None:
        super().__init__(f"The model gave numbers that are not finite at position {position} of the text.")


class BrokenGrammar(BrokenSequence):
    """A grammar matcher reached its limits, or was given a token that it forbids. reason: llguidance's message."""

    code = "broken_grammar"

    def __init__(self, reason: str) -> None:
        super().__init__(f"The grammar cannot be followed any further: {reason}.")


def listed(names: Collection[str], most: int = NAMED) -> str:
    """The first names, and how many more there are."""
    shown = ", ".join(sorted(names)[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
