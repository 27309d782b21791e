"""Ollama's `options`, and how long it is asked to keep a model.

Owns which of Ollama's many options mean something here. Where a request gives none, Ollama's documented defaults hold,
but for its penalty of repetition, which is off.
"""

from __future__ import annotations

import math
import re
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field, JsonValue, WithJsonSchema

from server.schemas.base import INT64, WireModel, refusal
from server.schemas.generation import MAX_LENGTH, Stops

UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "": 1.0}
PIECE = r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|ms|s|m|h)"
DURATION = re.compile(rf"([+-]?)((?:{PIECE})+|\d+(?:\.\d*)?)")
# Fields of the machine's, which a server here decides at its start, and one of Ollama's shifted contexts.
WITHOUT_EFFECT = frozenset(
    {
        *("numa", "num_batch", "num_gpu", "main_gpu", "num_thread", "low_vram", "f16_kv", "use_mmap", "use_mlock"),
        *("logits_all", "vocab_only", "embedding_only", "num_keep"),
        *("mirostat_tau", "mirostat_eta", "penalize_newline"),
    }
)


def _whole(value: Any) -> Any:
    """A whole number may be written 8.0, as clients do whose language has one kind of number."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def read_keep_alive(value: Any) -> float:
    """Seconds, from a number of them or a duration as Go writes it ("1h30m"); -1 for good, where it is negative."""
    seconds = value if isinstance(value, int | float) and not isinstance(value, bool) else None
    if isinstance(value, str) and (found := DURATION.fullmatch(value.strip())) is not None:
        pieces = re.findall(PIECE, found[2]) or [(found[2], "")]
        size = sum(float(number) * UNITS[unit] for number, unit in pieces)
        seconds = -size if found[1] == "-" else size
    if seconds is None or math.isnan(seconds):
        raise refusal("invalid_value", 'keep_alive must be a number of seconds, or a duration such as "5m" or "1h30m".')
    return -1.0 if seconds < 0 else float(seconds)


DURATION_SCHEMA: dict[str, JsonValue] = {
    "anyOf": [{"type": "number"}, {"type": "string", "pattern": r"^[+-]?\d+[smh]?$"}]
}
KeepAlive = Annotated[float, BeforeValidator(read_keep_alive), WithJsonSchema(DURATION_SCHEMA)]
Whole = Annotated[int, BeforeValidator(_whole)]


class OllamaOptions(WireModel):
    """Sampling and lengths. num_ctx: the context is as the server was started, and what asks for more is told so."""

    lenient: ClassVar[frozenset[str]] = WITHOUT_EFFECT
    refused: ClassVar[dict[str, tuple[Any, ...]]] = {"mirostat": (0,), "tfs_z": (1,), "typical_p": (1, 0)}
    explained: ClassVar[dict[str, str]] = dict.fromkeys(
        ("mirostat", "tfs_z", "typical_p"), "this server samples by top_k, top_p and min_p"
    )

    num_predict: Whole | None = Field(
        default=None, ge=-2, le=MAX_LENGTH, description="Tokens of the reply; below 1: all that the context holds"
    )
    num_ctx: Whole | None = Field(default=None, ge=0, le=MAX_LENGTH, description="Changes nothing; see the docs")
    temperature: float = Field(default=0.8, ge=0, le=100)
    top_k: Whole = Field(default=40, ge=-1, lt=2**31, description="0 or -1: off")
    top_p: float = Field(default=0.9, ge=0, le=1)
    min_p: float = Field(default=0.0, ge=0, le=1)
    seed: Whole | None = Field(default=None, ge=-INT64, lt=2 * INT64, description="Below 0: random")
    stop: Stops = Field(default=[])
    repeat_penalty: float = Field(default=1.0, ge=0.01, le=100, description="1: off; prompt tokens count as repeated")
    repeat_last_n: Whole = Field(default=-1, ge=-1, lt=2**31, description="0: no penalty; else all tokens count")
    presence_penalty: float = Field(default=0.0, ge=-2, le=2)
    frequency_penalty: float = Field(default=0.0, ge=-2, le=2)
