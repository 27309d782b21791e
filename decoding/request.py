"""One generation: what was asked (frozen) and the tokens so far (mutable, owned by `Request`).

Knows nothing of text, drafting state or KV storage.
Invariant: `tokens[:num_tokens]` is prompt followed by output; the last of them is the next root.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from decoding.errors import RequestRejected
from decoding.grammar import Grammar

MAX_LOGPROBS = 20
TRACE_STEPS, TRACE_TREES = "steps", "trees"


class FinishReason(StrEnum):
    """Why a request ended. STOP covers end tokens and stop ids; ABORT is the caller's own doing."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How the target's own token is drawn, and when to stop. Ranges are those of `validate`.

    temperature 0 is greedy. top_k 0, top_p 1 and min_p 0 are off. Filters apply in that order, to the
    distribution at `temperature`. `seed` fixes the noise, hence the reply. Lengths are in tokens.

    What comes before them changes the logits, see `processing`: presence and frequency penalties count the reply's
    tokens, the repetition penalty (1 is off) also the prompt's; logit_bias is added by token id; bad_words are
    token sequences of which the last may not follow the others; only allowed_token_ids may be drawn, if given, and
    only what `grammar` accepts next.

    logprobs: None for none, k for the chosen token's and the k likeliest at each token; prompt_logprobs the same
    for the prompt. Both are of the model's own distribution, see `logprobs`.
    """

    max_tokens: int
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    min_tokens: int = 0
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    bad_words: tuple[tuple[int, ...], ...] = ()
    allowed_token_ids: tuple[int, ...] | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    grammar: Grammar | None = None

    def validate(self) -> None:
        """Raise RequestRejected naming the first field out of range."""
        checks = (
            ("max_tokens", self.max_tokens >= 1, "at least 1"),
            ("temperature", 0.0 <= self.temperature <= 100.0, "between 0 and 100"),
            ("top_k", 0 <= self.top_k < 2**31, "0 (off) or a positive number"),
            ("top_p", 0.0 < self.top_p <= 1.0, "above 0 and at most 1"),
            ("min_p", 0.0 <= self.min_p <= 1.0, "between 0 and 1"),
            ("seed", 0 <= self.seed < 2**64, "a 64-bit number"),
            ("min_tokens", 0 <= self.min_tokens <= self.max_tokens, "between 0 and max_tokens"),
            ("presence_penalty", -2.0 <= self.presence_penalty <= 2.0, "between -2 and 2"),
            ("frequency_penalty", -2.0 <= self.frequency_penalty <= 2.0, "between -2 and 2"),
            ("repetition_penalty", 0.0 < self.repetition_penalty <= 100.0, "above 0 and at most 100"),
            ("logit_bias", all(-100.0 <= bias <= 100.0 for bias in self.logit_bias.values()), "between -100 and 100"),
            ("bad_words", all(self.bad_words), "sequences of at least one token"),
            ("allowed_token_ids", self.allowed_token_ids is None or len(self.allowed_token_ids) > 0, "not empty"),
            ("logprobs", _is_logprobs(self.logprobs), f"between 0 and {MAX_LOGPROBS}"),
            ("prompt_logprobs", _is_logprobs(self.prompt_logprobs), f"between 0 and {MAX_LOGPROBS}"),
        )
        for name, is_valid, expected in checks:
            if not is_valid:
                raise RequestRejected(f"{name} must be {expected}, got {getattr(self, name)}", param=name)


def _is_logprobs(num_top: int | None) -> bool:
    return num_top is None or 0 <= num_top <= MAX_LOGPROBS


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculationParams:
    """How to draft. Changes how fast the reply comes, never what it says.

    method: a name of the drafter registry, or "auto". max_nodes: budget, root not counted; None lets
    the server choose from its measured cost curve. max_depth: edges from the root. `without` names
    parts of a method to leave out (its ablations); `branching` is the isotropic method's k;
    `consensus` chooses between the paper's and the published code's definition of it. `candidates` is how
    the stand method draws: "coupled" to the target's own noise, "independent" of it, or "deterministic"; None
    is what the verification wants. verification: "match", the target's own tokens and so those of plain
    decoding, or "rejection", standard speculative sampling, exact in law alone; then the words above are not true.
    trace: whether to tell of every step, or of every step with its tree; None for neither.
    """

    method: str = "auto"
    max_nodes: int | None = None
    max_depth: int | None = None
    without: frozenset[str] = frozenset()
    branching: int = 3
    min_probability: float | None = None
    consensus: str = "occurrences"
    candidates: str | None = None
    verification: str = "match"
    trace: str | None = None


@dataclass(slots=True, kw_only=True)
class Request:
    """A running generation.

    prompt: int32 [p]; eos_token_ids: the model's end tokens (empty set when the model has none).
    prediction: int32, what the caller expects the reply to be; a draft, never a promise.
    """

    id: str
    prompt: NDArray[np.int32]
    sampling: SamplingParams
    speculation: SpeculationParams
    eos_token_ids: frozenset[int] = frozenset()
    tenant: str = ""
    session_id: str = "local"
    prediction: NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))
    num_tokens: int = field(init=False)
    finish_reason: FinishReason | None = field(init=False, default=None)
    _buffer: NDArray[np.int32] = field(init=False)
    stop_ids: frozenset[int] = field(init=False)  # never drawn before `min_tokens`, see `processing`

    def __post_init__(self) -> None:
        assert len(self.prompt) >= 1, self.id
        self._buffer = np.empty(len(self.prompt) + self.sampling.max_tokens, np.int32)
        self._buffer[: len(self.prompt)] = self.prompt
        self.num_tokens = len(self.prompt)
        end_tokens = frozenset() if self.sampling.ignore_eos else self.eos_token_ids
        self.stop_ids = end_tokens | frozenset(self.sampling.stop_token_ids)

    def validate(self, vocab_size: int) -> None:
        """Raise RequestRejected naming the first field that is out of range, for a vocabulary of this size."""
        self.sampling.validate()
        asked = self.sampling
        fields = (
            ("prompt", self.prompt.tolist()),
            ("stop_token_ids", asked.stop_token_ids),
            ("logit_bias", asked.logit_bias),
            ("bad_words", [token for word in asked.bad_words for token in word]),
            ("allowed_token_ids", asked.allowed_token_ids or ()),
            ("prediction", self.prediction.tolist()),
        )
        for name, ids in fields:
            if ids and (min(ids) < 0 or max(ids) >= vocab_size):
                raise RequestRejected(f"{name} holds token ids outside 0..{vocab_size - 1}", param=name)
        if asked.grammar is not None and asked.ignore_eos:
            raise RequestRejected(
                "ignore_eos cannot be had with a grammar, which says where a reply ends", "ignore_eos"
            )
        if len(self.prediction) and self.speculation.verification != "match":
            message = "a prediction can only be verified by match: it is not drawn from a known law"
            raise RequestRejected(message, "speculation.verification")

    @property
    def tokens(self) -> NDArray[np.int32]:
        """int32 [num_tokens]: prompt and output, a view that later `extend` calls do not move."""
        return self._buffer[: self.num_tokens]

    @property
    def num_output(self) -> int:
        return self.num_tokens - len(self.prompt)

    @property
    def output(self) -> NDArray[np.int32]:
        return self._buffer[len(self.prompt) : self.num_tokens]

    @property
    def max_total(self) -> int:
        """The most tokens this request can ever hold, prompt included."""
        return len(self._buffer)

    def extend(self, tokens: NDArray[np.int32]) -> int:
        """Append emitted tokens up to and including the one that ends the request; return how many.

        A stop inside an accepted run cuts the run exactly there and sets `finish_reason`.
        """
        for count, token in enumerate(tokens.tolist(), start=1):
            self._buffer[self.num_tokens] = token
            self.num_tokens += 1
            if token in self.stop_ids:
                self.finish_reason = FinishReason.STOP
                return count
            if self.num_output == self.sampling.max_tokens:
                self.finish_reason = FinishReason.LENGTH
                return count
        return len(tokens)
