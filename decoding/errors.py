"""The one exception tree of the engine.

GanderError
├── ConfigError          a start-up option that cannot be honoured
├── ModelRefused         a model that cannot be served, with the reason
├── RequestRejected      a request that cannot be served; `param` names the field at fault
└── BrokenSequence       a request that cannot go on, while all others can
    ├── BrokenLogits     the model gave it numbers that no token can be drawn from
    └── BrokenGrammar    its grammar met the limits of what a reply may cost
"""


class GanderError(Exception):
    """Root of every error Gander raises on purpose."""


class ConfigError(GanderError):
    """A start-up option that cannot be honoured on this machine or with this model."""


class ModelRefused(GanderError):
    """The model cannot be served correctly; the message says why."""


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
    """The model gave NaN or infinity, or minus infinity for every token. position: of the token to draw."""

    code = "broken_logits"

    def __init__(self, position: int) -> None:
        super().__init__(f"The model gave numbers that are not finite at position {position} of the text.")


class BrokenGrammar(BrokenSequence):
    """A matcher's limits are met, or a token came that its grammar forbids. reason: llguidance's."""

    code = "broken_grammar"

    def __init__(self, reason: str) -> None:
        super().__init__(f"The grammar cannot be followed any further: {reason}.")
