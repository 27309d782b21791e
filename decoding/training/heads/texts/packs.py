"""Owns the packs that steps learn: whole answers side by side, without padding.

Pure numpy. Invariant: packs and their order depend only on answers, size and seed, so a resumed run sees the same ones.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from decoding.training.heads.texts.answers import Answer

IntArray = NDArray[np.int64]
NEIGHBOURS = 256  # answers
# Shape suffixes: A answers of a pack, T its tokens.


@dataclass(frozen=True)
class Pack:
    """answers: in the order in which their tokens lie."""

    answers: tuple[Answer, ...]

    @property
    def texts(self) -> list[NDArray[np.int32]]:
        return [answer.tokens for answer in self.answers]

    @cached_property
    def lengths_A(self) -> IntArray:
        """int64: tokens of each answer, its prompt included."""
        return np.array([len(answer.tokens) for answer in self.answers], np.int64)

    @property
    def num_tokens(self) -> int:
        return int(self.lengths_A.sum())

    @cached_property
    def digest(self) -> str:
        """32 hex digits of its tokens and of where each text begins."""
        found = hashlib.sha256(self.lengths_A.tobytes())
        found.update(np.concatenate(self.texts).astype("<i4").tobytes())
        return found.hexdigest()[:32]


@dataclass(frozen=True)
class Places:
    """Where the tokens of a pack lie. texts_T: the answer of each; offsets_T: its place in that. ends_T: where in the
    pack its answer ends. is_learned_T: bool, whether the token after it belongs to a reply."""

    texts_T: IntArray
    offsets_T: IntArray
    ends_T: IntArray
    is_learned_T: NDArray[np.bool_]

    @classmethod
    def of(cls, pack: Pack) -> Places:
        lengths_A = pack.lengths_A
        texts_T, ends_A = np.repeat(np.arange(len(lengths_A)), lengths_A), lengths_A.cumsum()
        offsets_T = np.arange(len(texts_T)) - (ends_A - lengths_A)[texts_T]
        first_A = np.array([answer.num_prompt - 1 for answer in pack.answers], np.int64)
        is_learned_T = (offsets_T >= first_A[texts_T]) & (offsets_T < lengths_A[texts_T] - 1)
        return cls(texts_T, offsets_T, ends_A[texts_T], is_learned_T)


def packed(answers: Sequence[Answer], most_tokens: int, seed: int) -> list[Pack]:
    """All answers in a random order, so many of them in a pack as have `most_tokens` tokens together; a longer one is
    alone. Of a few hundred neighbours those of like lengths come together, which attention pads to the longest."""
    random_order = np.random.default_rng(seed).permutation(len(answers)).tolist()
    ordered: list[Answer] = []
    for first in range(0, len(answers), NEIGHBOURS):
        some = [answers[place] for place in random_order[first : first + NEIGHBOURS]]
        ordered += sorted(some, key=lambda each: len(each.tokens))
    return packed_in_order(Pack(tuple(ordered)), most_tokens)


def packed_in_order(pack: Pack, most_tokens: int) -> list[Pack]:
    """Its answers in packs of `most_tokens` tokens; a longer one is alone."""
    packs: list[Pack] = []
    now, num_tokens = list[Answer](), 0
    for answer in pack.answers:
        if now and num_tokens + len(answer.tokens) > most_tokens:
            packs.append(Pack(tuple(now)))
            now, num_tokens = [], 0
        now.append(answer)
        num_tokens += len(answer.tokens)
    return [*packs, Pack(tuple(now))] if now else packs


def chosen_pack(packs: Sequence[Pack], step: int, seed: int) -> Pack:
    """That of a step, counted from 0. Each epoch takes all packs in a new random order."""
    epoch, rest = divmod(step, len(packs))
    return packs[np.random.default_rng((seed, epoch)).permutation(len(packs))[rest]]
