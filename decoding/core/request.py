"""One generation: what was asked (frozen) and the tokens so far (mutable, owned by `Request`).

Knows nothing of text, drafting state or KV storage.
Invariant: `tokens[:num_tokens]` is prompt followed by output; the last of them is the next root.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from decoding.core.picture import Picture
from decoding.core.pooling import Pooling
from decoding.core.sampling_params import SamplingParams
from decoding.core.speculation_params import SpeculationParams
from decoding.errors import RequestRejected


class FinishReason(StrEnum):
    """Why a request ended. STOP: an end token or stop id came; ABORT: the caller cancelled it."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


@dataclass(slots=True, kw_only=True)
class Request:
    """A running generation.

    prompt: int32 [p]. eos_token_ids: the model's end tokens (empty if the model has none). cache_salt: prompts share
    cached blocks only if both their salt and their tenant are the same. prediction: int32, the reply that the caller
    expects, used only as a draft. resumed: int32, reply tokens that an earlier engine emitted before it died; the reply
    continues after them, unchanged. call_id: requests of one call share a place in the queue; by default the request is
    alone. weight: the tenant's share relative to others when memory or time is short. priority: lower runs first,
    whatever the tenant's share. pooling: the prompt's embedding is wanted, and of the reply one token, which nobody is
    told. pictures: of the prompt, in order.
    """

    id: str
    prompt: NDArray[np.int32]
    sampling: SamplingParams
    speculation: SpeculationParams
    eos_token_ids: frozenset[int] = frozenset()
    tenant: str = ""
    cache_salt: str = ""
    session_id: str = "local"
    call_id: str = ""
    weight: float = 1.0
    priority: int = 0
    pooling: Pooling | None = None
    prediction: NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))
    resumed: NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))
    pictures: tuple[Picture, ...] = ()
    num_tokens: int = field(init=False)
    finish_reason: FinishReason | None = field(init=False, default=None)
    _buffer: NDArray[np.int32] = field(init=False)
    _keys: NDArray[np.int32] = field(init=False)  # the same array where there are no pictures
    stop_ids: frozenset[int] = field(init=False)  # never drawn before `min_tokens`, see `LogitsProcessors`

    def __post_init__(self) -> None:
        assert len(self.prompt) >= 1, self.id
        assert self.weight > 0, (self.id, self.weight)
        self.call_id = self.call_id or self.id
        self._buffer = np.empty(len(self.prompt) + self.sampling.max_tokens, np.int32)
        self._buffer[: len(self.prompt)] = self.prompt
        self._keys = self._buffer.copy() if self.pictures else self._buffer
        for picture in self.pictures:
            places = [np.arange(span.first, span.end) for span in picture.spans]
            self._keys[np.concatenate(places)] = picture.row_keys()
        self.num_tokens = len(self.prompt)
        end_tokens = frozenset() if self.sampling.ignore_eos else self.eos_token_ids
        self.stop_ids = end_tokens | frozenset(self.sampling.stop_token_ids)
        self.extend(self.resumed)
        assert self.finish_reason is None, (self.id, self.finish_reason)

    def validate(self, vocab_size: int) -> None:
        """Raise RequestRejected that names the first field out of range for a vocabulary of this size. The ids in
        biases, bad words and allowed tokens are checked where arrays are made of them, once a call."""
        self.sampling.validate()
        asked = self.sampling
        fields = (
            ("prompt", self.prompt),
            ("stop_token_ids", np.array(asked.stop_token_ids, np.int64)),
            ("prediction", self.prediction),
            ("resumed", self.resumed),
        )
        for name, ids in fields:
            if len(ids) and (ids.min() < 0 or ids.max() >= vocab_size):
                raise RequestRejected(f"{name} holds token ids outside 0..{vocab_size - 1}", param=name)
        if asked.grammar is not None and asked.ignore_eos:
            raise RequestRejected(
                "ignore_eos cannot be had with a grammar, which says where a reply ends", "ignore_eos"
            )
        if len(self.prediction) and self.speculation.verification != "match":
            message = "a prediction can only be verified by match: it is not drawn from a known law"
            raise RequestRejected(message, "speculation.verification")

    @property
    def runs_whole_prompt(self) -> bool:
        """Whether something is wanted of each of the prompt's tokens, so that none is taken from the cache."""
        return self.sampling.prompt_logprobs is not None or self.pooling == "mean"

    @property
    def tokens(self) -> NDArray[np.int32]:
        """int32 [num_tokens]: prompt and output, a view that later `extend` calls do not move."""
        return self._buffer[: self.num_tokens]

    @property
    def buffer(self) -> NDArray[np.int32]:
        """int32 [max_total]: `tokens`, followed by room for the rest of the reply."""
        return self._buffer

    @property
    def keys(self) -> NDArray[np.int32]:
        """int32 [num_tokens]: `tokens`, with a negative number in place of each row of a picture, which only this
        picture has there. By these a prompt is found again, and drafting reads them: what is negative is never
        drafted."""
        return self._keys[: self.num_tokens]

    @property
    def key_buffer(self) -> NDArray[np.int32]:
        """int32 [max_total]: `keys`, followed by room for the rest of the reply."""
        return self._keys

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
        """Append emitted tokens up to and including the one that ends the request; return how many were appended.

        A stop token inside an accepted run cuts the run right after it and sets `finish_reason`.
        """
        for count, token in enumerate(tokens.tolist(), start=1):
            self._buffer[self.num_tokens] = self._keys[self.num_tokens] = token
            self.num_tokens += 1
            if token in self.stop_ids:
                self.finish_reason = FinishReason.STOP
                return count
            if self.num_output == self.sampling.max_tokens:
                self.finish_reason = FinishReason.LENGTH
                return count
        return len(tokens)
