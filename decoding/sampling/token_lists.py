"""What a request says of single tokens, as arrays: biases, bad words, and the tokens that alone are allowed.

They are checked and made once for all choices of a call, which share the records that they are made of.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from decoding.core.sampling_params import SamplingParams
from decoding.errors import RequestRejected
from decoding.kernels.cpu.sampling.edits import BadWords

MOST_KEPT = 8  # calls whose lists are kept for their further choices

# Shape suffixes: B biased tokens, W words of a bit mask


@dataclass(frozen=True, slots=True, eq=False)
class TokenLists:
    """bias_ids_B is sorted; biases_B is what is added there. allowed_W: bits, None where all tokens are allowed."""

    bias_ids_B: NDArray[np.int64]
    biases_B: NDArray[np.float64]
    bad_words: BadWords
    longest_word: int
    allowed_W: NDArray[np.uint32] | None

    @classmethod
    def of(cls, asked: SamplingParams, vocab_size: int) -> TokenLists:
        """Raises RequestRejected, naming the field, for ids outside the vocabulary."""
        ids = _checked(sorted(asked.logit_bias), vocab_size, "logit_bias")
        words = _checked((token for word in asked.bad_words for token in word), vocab_size, "bad_words")
        allowed = _checked(asked.allowed_token_ids or (), vocab_size, "allowed_token_ids")
        ends = np.cumsum([len(word) for word in asked.bad_words], dtype=np.int64)
        return cls(
            bias_ids_B=ids,
            biases_B=np.array([asked.logit_bias[token] for token in ids.tolist()], np.float64),
            bad_words=BadWords(words.astype(np.int32), ends),
            longest_word=max(map(len, asked.bad_words), default=1),
            allowed_W=None if asked.allowed_token_ids is None else bit_mask(allowed, vocab_size),
        )


class RecentLists:
    """The lists of the last calls. vocab_size: V of the logits."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._nothing = TokenLists.of(SamplingParams(max_tokens=1), vocab_size)
        self._kept: dict[tuple[int, ...], tuple[SamplingParams, TokenLists]] = {}  # by their collections' identities

    def of(self, asked: SamplingParams) -> TokenLists:
        """Raises RequestRejected as `TokenLists.of` does."""
        if not (asked.logit_bias or asked.bad_words or asked.allowed_token_ids is not None):
            return self._nothing
        key = id(asked.logit_bias), id(asked.bad_words), id(asked.allowed_token_ids)
        if key not in self._kept:
            lists = TokenLists.of(asked, self._vocab_size)
            self._kept[key] = asked, lists  # what is kept keeps its identity
            if len(self._kept) > MOST_KEPT:
                del self._kept[next(iter(self._kept))]
        return self._kept[key][1]


def bit_mask(ids: NDArray[np.int64], vocab_size: int) -> NDArray[np.uint32]:
    """uint32 [W] with the bits of `ids` set."""
    is_set = np.zeros((vocab_size + 31) // 32 * 32, np.bool_)
    is_set[ids] = True
    return np.packbits(is_set, bitorder="little").view(np.uint32)


def _checked(ids: Iterable[int], vocab_size: int, name: str) -> NDArray[np.int64]:
    array = np.fromiter(ids, np.int64)
    if len(array) and (array.min() < 0 or array.max() >= vocab_size):
        raise RequestRejected(f"{name} holds token ids outside 0..{vocab_size - 1}", param=name)
    return array
