"""Changes a request's logits before each token is drawn: penalties, bias, allowed tokens, grammar, bad words,
min_tokens.

They apply in this order. If they leave no token, bad words and min_tokens are dropped, then allowed_token_ids, but
never the grammar. Owns their state: counts of seen tokens, the end of the text, the grammar's matcher. Knows nothing of
trees. Invariant: the state is that of the request's reply, or of the reply plus the part of the accepted path walked so
far.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from decoding.core.request import Request
from decoding.core.sampling_params import SamplingParams
from decoding.core.speculation_params import SpeculationParams
from decoding.kernels.cpu.sampling.edits import Penalties, add_bias, forbid_bad_words, forbid_unset, penalise
from decoding.sampling.grammar.matcher import GrammarMatcher
from decoding.sampling.law import checked_highest
from decoding.sampling.token_lists import TokenLists

# Shape suffixes: V vocabulary, W words of a bit mask, E entries


class Entries(NamedTuple):
    """Changes of a row at some distinct tokens. counts_E: occurrences in the reply, -1 if no penalty applies. biases_E:
    what is added, minus infinity for a forbidden token."""

    tokens_E: NDArray[np.int64]
    counts_E: NDArray[np.int64]
    biases_E: NDArray[np.float64]


class LogitsProcessors:
    """One request's logits processors: `note` takes each token of the reply, `row` changes the next token's logits.

    vocab_size: V of the rows. matcher: of the request's grammar, at its start. lists: the request's. Tokens that the
    reply holds already are noted at once.
    """

    def __init__(
        self,
        request: Request,
        vocab_size: int,
        matcher: GrammarMatcher | None = None,
        lists: TokenLists | None = None,
    ) -> None:
        asked = request.sampling
        lists = lists or TokenLists.of(asked, vocab_size)
        self.matcher = matcher
        self.num_noted = 0
        self._request = request
        self.penalties = Penalties(asked.presence_penalty, asked.frequency_penalty, asked.repetition_penalty)
        num_counted = vocab_size if asked.has_penalties else 0
        self._counts_V = np.zeros(num_counted, np.int32)
        self._seen = _Distinct(num_counted, request.prompt if asked.repetition_penalty != 1 else request.prompt[:0])
        self._bias_ids, self._biases = lists.bias_ids_B, lists.biases_B
        self._bad_words, self._longest_word = lists.bad_words, lists.longest_word
        self._tail = request.prompt[len(request.prompt) - min(len(request.prompt), self._longest_word - 1) :]
        self.allowed_W = lists.allowed_W
        self._stop_ids = np.array(sorted(request.stop_ids), np.int64)
        self.catch_up()

    @property
    def is_needed(self) -> bool:
        """Whether later rows can change. False, and it stays so, once min_tokens was the only option and is reached."""
        return changes_logits(self._request.sampling) or self.num_noted < self._request.sampling.min_tokens

    def catch_up(self) -> None:
        """Note the reply's tokens that are not noted yet, such as the token drawn after the accepted path."""
        for token in self._request.output[self.num_noted :].tolist():
            self.note(token)

    def note(self, token: int) -> None:
        """Update the state for the reply's next token."""
        self.num_noted += 1
        if len(self._counts_V):
            self._counts_V[token] += 1
            self._seen.add(token)
        if self._longest_word > 1:
            self._tail = np.append(self._tail, np.int32(token))[-(self._longest_word - 1) :]
        if self.matcher is not None:
            self.matcher.consume(token)

    def row(self, logits_V: NDArray[np.float32]) -> NDArray[np.float32]:
        """float32 [V]: a changed copy of the next token's logits. Raises BrokenLogits."""
        checked_highest(logits_V, len(self._request.prompt) + self.num_noted)  # masks would hide NaN and infinity
        row = logits_V.copy()
        if len(self._counts_V):
            penalise(row, self._seen.ids, self._counts_V, self.penalties)
        add_bias(row, self._bias_ids, self._biases)
        grammar_W = self.matcher.mask() if self.matcher is not None else None
        processed = row.copy() if grammar_W is not None or self.allowed_W is not None else row
        for mask_W in (grammar_W, self.allowed_W):
            if mask_W is not None:
                forbid_unset(processed, mask_W)
        strict = processed.copy() if len(self._bad_words.ends) or self._is_early else processed
        forbid_bad_words(strict, self._tail, self._bad_words)
        if self._is_early:
            strict[self._stop_ids] = -np.inf
        for choice in (strict, processed):
            if choice.max() > -np.inf:
                return choice
        if grammar_W is not None:
            forbid_unset(row, grammar_W)
        return row

    def entries(self) -> Entries:
        """The changes by penalties and bias that are the same for every row of a tree."""
        tokens_E = np.union1d(self._seen.ids, self._bias_ids).astype(np.int64)
        counts_E = np.full(len(tokens_E), -1, np.int64)
        if len(self._counts_V):
            counts_E = np.where(self._seen.holds(tokens_E), self._counts_V[tokens_E], counts_E)
        biases_E = np.zeros(len(tokens_E))
        biases_E[np.searchsorted(tokens_E, self._bias_ids)] = self._biases
        return Entries(tokens_E, counts_E, biases_E)

    def entries_after(self, path: Sequence[int]) -> Entries:
        """The changes that differ from `entries` after the drafted tokens `path`: at these tokens, and at forbidden
        ones.

        No option is dropped here: the caller must handle a row in which no token is left.
        """
        forbidden = self._forbidden_after(path)
        tokens = sorted({*(path if len(self._counts_V) else ()), *forbidden})
        counts = [-1] * len(tokens)
        if len(self._counts_V):
            seen = self._seen.holds(np.array(tokens, np.int64)).tolist()
            noted = [int(self._counts_V[token]) + path.count(token) for token in tokens]
            counts = [count if count or was else -1 for count, was in zip(noted, seen, strict=True)]
        asked = self._request.sampling.logit_bias
        biases = [-math.inf if token in forbidden else asked.get(token, 0.0) for token in tokens]
        return Entries(np.array(tokens, np.int64), np.array(counts, np.int64), np.array(biases, np.float64))

    def _forbidden_after(self, path: Sequence[int]) -> set[int]:
        is_early = self.num_noted + len(path) < self._request.sampling.min_tokens
        text = [*self._tail.tolist(), *path]
        ended = {
            last for *before, last in self._request.sampling.bad_words if text[len(text) - len(before) :] == before
        }
        return ended | set(self._stop_ids.tolist()) if is_early else ended

    @property
    def _is_early(self) -> bool:
        return self.num_noted < self._request.sampling.min_tokens


class _Distinct:
    """A set of token ids in an array that grows."""

    def __init__(self, vocab_size: int, start: NDArray[np.int32]) -> None:
        first = np.unique(start)
        self._is_in_V = np.zeros(vocab_size, np.bool_)
        self._is_in_V[first] = True
        self._ids = np.resize(first, len(first) + 64) if len(first) else np.zeros(64, np.int32)
        self._count = len(first)

    @property
    def ids(self) -> NDArray[np.int32]:
        return self._ids[: self._count]

    def holds(self, tokens: NDArray[np.int64]) -> NDArray[np.bool_]:
        """bool, for each token: whether it is in the set."""
        return self._is_in_V[tokens]

    def add(self, token: int) -> None:
        if self._is_in_V[token]:
            return
        self._is_in_V[token] = True
        if self._count == len(self._ids):
            self._ids = np.resize(self._ids, 2 * self._count)
        self._ids[self._count] = token
        self._count += 1


def changes_logits(asked: SamplingParams) -> bool:
    """Whether all rows of a reply are processed. min_tokens does not count: it concerns only the first ones."""
    return bool(asked.has_penalties or asked.logit_bias or asked.bad_words or asked.allowed_token_ids or asked.grammar)


def processors_of(
    request: Request, vocab_size: int, matcher: GrammarMatcher | None, lists: TokenLists | None = None
) -> LogitsProcessors | None:
    """A request's logits processors; None if it uses no option that changes logits."""
    if not changes_logits(request.sampling) and request.sampling.min_tokens == 0:
        return None
    return LogitsProcessors(request, vocab_size, matcher, lists)


def warm_up() -> None:
    """Compile the kernels by processing one row of each kind, or load them from numba's cache."""
    asked = SamplingParams(max_tokens=1, presence_penalty=1.0, logit_bias={1: 1.0}, bad_words=((1, 2),))
    speculation = SpeculationParams()
    for sampling in (asked, replace(asked, allowed_token_ids=(2, 3))):
        request = Request(id="warm-up", prompt=np.ones(2, np.int32), sampling=sampling, speculation=speculation)
        LogitsProcessors(request, 4).row(np.zeros(4, np.float32))


def reference_process(
    logits_V: torch.Tensor, request: Request, reply: list[int], grammar_W: NDArray[np.uint32] | None
) -> torch.Tensor:
    """float32 [V]: the result of `LogitsProcessors.row` after the tokens of `reply`, in plain tensor operations.

    grammar_W: the grammar's mask after `reply`, if the request has one.
    """
    asked, vocab_size = request.sampling, len(logits_V)
    counts_V = torch.bincount(torch.tensor(reply, dtype=torch.long), minlength=vocab_size).double()
    prompt_V = torch.bincount(torch.from_numpy(request.prompt).long(), minlength=vocab_size) > 0
    wide_V = logits_V.double()
    repeated_V = torch.where(wide_V > 0, wide_V / asked.repetition_penalty, wide_V * asked.repetition_penalty)
    wide_V = torch.where(prompt_V | (counts_V > 0), repeated_V, wide_V)
    wide_V = (
        (wide_V - asked.frequency_penalty * counts_V - asked.presence_penalty * (counts_V > 0).double())
        .float()
        .double()
    )
    for token, bias in asked.logit_bias.items():
        wide_V[token] += bias
    row_V = wide_V.float()
    grammar_V = _from_bits(grammar_W, vocab_size)
    allowed_V = torch.ones(vocab_size, dtype=torch.bool)
    if asked.allowed_token_ids is not None:
        allowed_V[:] = False
        allowed_V[list(asked.allowed_token_ids)] = True
    strict_V = torch.ones(vocab_size, dtype=torch.bool)
    text = [*request.prompt.tolist(), *reply]
    for *before, last in asked.bad_words:
        if text[len(text) - len(before) :] == before:
            strict_V[last] = False
    if len(reply) < asked.min_tokens:
        strict_V[sorted(request.stop_ids)] = False
    for kept_V in (grammar_V & allowed_V & strict_V, grammar_V & allowed_V, grammar_V):
        chosen_V = row_V.masked_fill(~kept_V, -math.inf)
        if chosen_V.max() > -math.inf:
            return chosen_V
    return row_V


def _from_bits(mask_W: NDArray[np.uint32] | None, vocab_size: int) -> torch.Tensor:
    """bool [V]; all True if there is no mask."""
    if mask_W is None:
        return torch.ones(vocab_size, dtype=torch.bool)
    return torch.from_numpy(np.unpackbits(mask_W.view(np.uint8), bitorder="little")[:vocab_size].astype(np.bool_))
