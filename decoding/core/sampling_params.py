"""The sampling parameters of a request. They are declared only here; the same record crosses the socket."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from decoding.core.grammar import Grammar
from decoding.errors import RequestRejected

MAX_LOGPROBS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How the target's own token is drawn, and when to stop. Ranges are those of `validate`.

    temperature 0 is greedy. top_k 0, top_p 1 and min_p 0 are off. Filters apply in that order, to the
    distribution at `temperature`. `seed` fixes the noise, hence the reply. Lengths are in tokens.

    Before the temperature, `LogitsProcessors` change the logits: presence and frequency penalties count the reply's
    tokens, the repetition penalty (1 is off) also the prompt's; logit_bias is added by token id; bad_words are token
    sequences whose last token may not follow the others; only allowed_token_ids (if given) and the tokens that
    `grammar` accepts next may be drawn.

    logprobs: k asks, at each token, for the logprobs of the chosen token and of the k most likely ones; None for none.
    prompt_logprobs: the same for the prompt. Both are of the model's own distribution, see `logprobs`.
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

    @property
    def has_penalties(self) -> bool:
        return bool(self.presence_penalty or self.frequency_penalty or self.repetition_penalty != 1)

    def validate(self) -> None:
        """Raise RequestRejected that names the first field out of range."""
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
            ("repetition_penalty", 0.01 <= self.repetition_penalty <= 100.0, "between 0.01 and 100"),
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
