"""The self-test: compares a small tree with decoding one token at a time, and with the model's own forward.

It runs at load on short prompts and covers prefill in chunks, two requests in one step, a tree, the commit of
a path that is not contiguous, a second tree on top, and a chain as long as the model's size leaves time for.
Invariant: a model that passes gives every tree node the logits of its root-to-node path.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec
import numpy as np
import torch
from transformers import PreTrainedModel

from decoding.cache.batch import Segment, StepBatch, pack
from decoding.cache.block_pool import num_blocks_for
from decoding.cache.kv_cache import KvCache
from decoding.cache.kv_store import KvRows, KvStore
from decoding.core.tree import IntArray
from decoding.errors import ModelRefused
from decoding.model.seam import implementation

# Shape suffixes: M tokens of a sequence, R tokens that need logits, V vocabulary.
PROMPT_LEN, OTHER_LEN, CHUNK = 11, 4, 6
ROOM = 32  # the most tokens of these sequences, tree included
FIRST_TREE: IntArray = np.array([-1, 0, 0, 1, 2, 2], np.int32)
FIRST_PATH: IntArray = np.array([0, 2, 4], np.int32)
SECOND_TREE: IntArray = np.array([-1, 0, 0, 2], np.int32)
PIECES = (1, 2, 3, 5, 7, 16, 33)
# 512 tokens, of which only the last piece goes through the head, which may cost as much as all layers.
LONG_PIECES = (16, 128, 304, 64)
LONG_WORK = 1 << 37  # parameters times tokens, seconds on two cores; larger models skip the long pieces
# The largest allowed difference, as a share of the largest logit. A wrong mask or position causes one of order one.
TOLERANCES = {torch.float64: 1e-5, torch.float32: 1e-3, torch.bfloat16: 0.1, torch.float16: 0.05}
TOLERANCES |= {torch.int8: 0.1, torch.float8_e4m3fn: 0.3}  # of keys and values
ROUNDED_TOLERANCE = 0.3  # layers that round may move an activation by a whole integer for a small difference


class Runnable(Protocol):
    def new_store(self, num_blocks: int) -> KvStore: ...

    def forward(self, batch: StepBatch) -> torch.Tensor: ...


class Testable(Runnable, Protocol):
    dtype: torch.dtype
    kv_dtype: torch.dtype
    weights: str
    vocab_size: int
    num_parameters: int
    max_model_len: int

    @property
    def state_bytes(self) -> int: ...


class WholeModel(Testable, Protocol):
    def is_same_on_any_threads(self) -> bool: ...


class SelfTestReport(msgspec.Struct, frozen=True):
    """is_exact: logits had the same bits in trees, in chunks of any size and one token at a time. on_any_threads: they
    have them on any number of threads.

    difference: the largest difference from the model's own forward, as a share of the largest logit.
    """

    is_exact: bool
    on_any_threads: bool
    difference: float


@dataclass(frozen=True, slots=True)
class SelfTestCase:
    """A short prompt, another request's prompt, and the tokens of two trees."""

    prompt: IntArray
    other: IntArray
    first: IntArray
    second: IntArray

    @property
    def committed(self) -> IntArray:
        """The tokens that are in the cache when the second tree runs."""
        return np.concatenate([self.prompt, self.first[FIRST_PATH]])


def self_test_case(vocab_size: int) -> SelfTestCase:
    tokens = np.random.default_rng(0).integers(0, vocab_size, 64, dtype=np.int32)
    first, second = tokens[30 : 30 + len(FIRST_TREE)], tokens[40 : 40 + len(SECOND_TREE)]
    return SelfTestCase(tokens[:PROMPT_LEN], tokens[20 : 20 + OTHER_LEN], first, second)


def own_logits(model: PreTrainedModel, case: SelfTestCase) -> list[torch.Tensor]:
    """float32 [V] each: the logits of both trees' nodes by the model's own forward with its eager attention. Paths that
    begin a longer one share its."""
    found: dict[bytes, torch.Tensor] = {}
    sequences = _path_sequences(case)
    for tokens in sorted(sequences, key=len, reverse=True):
        if tokens.tobytes() not in found:
            ids_1M = torch.from_numpy(tokens.astype(np.int64))[None].to(model.device)
            with torch.inference_mode(), implementation(model, "eager"):
                logits_MV = model(input_ids=ids_1M, use_cache=False).logits[0].float()
            found |= {tokens[: end + 1].tobytes(): logits_V for end, logits_V in enumerate(logits_MV)}
    return [found[tokens.tobytes()] for tokens in sequences]


def _path_sequences(case: SelfTestCase) -> list[IntArray]:
    """The whole sequence up to each node of both trees."""
    first = [np.concatenate([case.prompt, path]) for path in _paths(case.first, FIRST_TREE)]
    return first + [np.concatenate([case.committed, path]) for path in _paths(case.second, SECOND_TREE)]


def self_test(model: WholeModel, case: SelfTestCase, own: Sequence[torch.Tensor]) -> SelfTestReport:
    """Compare tree decoding with both references. Raises ModelRefused if a node's logits are not those of its path.

    own: as of `own_logits`.
    """
    tree, plain = trees_and_paths(model, case)
    difference = _check(model, tree, own, "the model's own forward over its path")
    _check(model, tree, plain, "decoding its path one token at a time")
    is_exact = all(map(torch.equal, tree, plain))
    return SelfTestReport(is_exact and _is_row_invariant(model), model.is_same_on_any_threads(), difference)


def trees_and_paths(model: Testable, case: SelfTestCase) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Logits of both trees' nodes, in their trees, then each by its path, one token at a time."""
    return _decode_trees(model, case), _decode_all_paths(model, case)


def trial_steps(model: Runnable, case: SelfTestCase) -> list[StepBatch]:
    """Two steps after the prompt: a single token, and a tree."""
    cache = _new_cache(model, ROOM)
    rows = cache.new_rows(ROOM)
    _prefill(model, cache.store, rows, case.prompt)
    return [pack([Segment(rows, case.first[:size], FIRST_TREE[:size])], cache.store) for size in (1, len(FIRST_TREE))]


def long_chain(model: Testable, num_rows: int = sum(PIECES), num_logits: int = sum(PIECES)) -> StepBatch:
    """A step with a chain from position 0, in its own cache, with logits of the last `num_logits` tokens."""
    cache = _new_cache(model, num_rows)
    return pack([Segment(cache.new_rows(num_rows), _chain_tokens(model, num_rows), None, num_logits)], cache.store)


def _chain_tokens(model: Testable, num_rows: int) -> IntArray:
    return np.random.default_rng(1).integers(0, model.vocab_size, num_rows, dtype=np.int32)


def _is_row_invariant(model: Testable) -> bool:
    """Whether a chain gives the same bits in one forward and in pieces."""
    if not _is_same_in_pieces(model, PIECES, sum(PIECES)):
        return False
    most_rows = min(model.max_model_len, LONG_WORK // model.num_parameters)
    return sum(LONG_PIECES) > most_rows or _is_same_in_pieces(model, LONG_PIECES, LONG_PIECES[-1])


def whole_and_pieces(
    model: Testable, sizes: Sequence[int], num_compared: int
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Logits of the last `num_compared` tokens of a chain, in one forward, then in pieces."""
    num_rows = sum(sizes)
    tokens, whole_RV = _chain_tokens(model, num_rows), model.forward(long_chain(model, num_rows, num_compared))
    cache = _new_cache(model, num_rows)
    pieces, logits, start = cache.new_rows(num_rows), list[torch.Tensor](), 0
    for size in sizes:
        end = start + size
        num_logits = min(size, max(0, end - (num_rows - num_compared)))
        logits += model.forward(pack([Segment(pieces, tokens[start:end], None, num_logits)], cache.store))
        cache.store.commit(pieces, np.arange(size, dtype=np.int32))
        start = end
    return list(whole_RV), logits


def _is_same_in_pieces(model: Testable, sizes: Sequence[int], num_compared: int) -> bool:
    return all(map(torch.equal, *whole_and_pieces(model, sizes, num_compared)))


def _check(model: Testable, actual: Sequence[torch.Tensor], expected: Sequence[torch.Tensor], what: str) -> float:
    actual_RV, expected_RV = torch.stack(list(actual)), torch.stack(list(expected))
    scale = max(1.0, expected_RV.abs().max().item())
    difference = (actual_RV - expected_RV).abs().max().item() / scale
    is_rounded = model.weights != str(model.dtype).removeprefix("torch.")
    tolerance = ROUNDED_TOLERANCE if is_rounded else max(TOLERANCES[model.dtype], TOLERANCES[model.kv_dtype])
    if model.state_bytes:  # states are float32 whatever the model is
        tolerance = max(tolerance, TOLERANCES[torch.float32])
    if not difference <= tolerance:  # also true for NaN
        raise ModelRefused(
            f"the model cannot be served: the logits of a tree row differ from {what} by {difference:.2g} of the "
            "largest logit; it may ignore explicit positions or keep state of its own between rows"
        )
    return difference


def _decode_trees(model: Testable, case: SelfTestCase) -> list[torch.Tensor]:
    """Logits of both trees' nodes. The first tree shares its step with another request."""
    cache = _new_cache(model, ROOM, ROOM)
    store, ours, others = cache.store, cache.new_rows(ROOM), cache.new_rows(ROOM)
    _prefill(model, store, ours, case.prompt)
    segments = [Segment(others, case.other, None, "none"), Segment(ours, case.first, FIRST_TREE)]
    rows = list(model.forward(pack(segments, store)))
    store.commit(ours, FIRST_PATH)
    store.commit(others, np.arange(len(case.other), dtype=np.int32))
    return rows + list(model.forward(pack([Segment(ours, case.second, SECOND_TREE)], store)))


def _decode_all_paths(model: Testable, case: SelfTestCase) -> list[torch.Tensor]:
    """Logits of both trees' nodes, each by its path."""
    first = _decode_paths(model, case.prompt, _paths(case.first, FIRST_TREE))
    return first + _decode_paths(model, case.committed, _paths(case.second, SECOND_TREE))


def _decode_paths(model: Testable, prompt: IntArray, paths: Sequence[IntArray]) -> list[torch.Tensor]:
    """Logits at the end of each path, one token at a time. Each path extends an earlier path by one token."""
    cache = _new_cache(model, *[ROOM] * (len(paths) + 1))
    trunk = cache.new_rows(ROOM)
    _prefill(model, cache.store, trunk, prompt)
    decoded: dict[tuple[int, ...], KvRows] = {(): trunk}
    rows = []
    for path in paths:
        parent = decoded[tuple(path[:-1].tolist())]
        child = cache.fork(parent, ROOM)
        rows.append(model.forward(pack([Segment(child, path[-1:])], cache.store))[0])
        cache.store.commit(child, np.zeros(1, np.int32))
        decoded[tuple(path.tolist())] = child
    return rows


def _paths(tokens: IntArray, parents: IntArray) -> list[IntArray]:
    """The tokens from the root to each node, in node order."""
    paths: list[IntArray] = []
    for node, parent in enumerate(parents):
        paths.append(np.append(paths[parent] if parent >= 0 else tokens[:0], tokens[node]).astype(np.int32))
    return paths


def _prefill(model: Runnable, store: KvStore, rows: KvRows, prompt: IntArray) -> None:
    for start in range(0, len(prompt), CHUNK):
        chunk = prompt[start : start + CHUNK]
        model.forward(pack([Segment(rows, chunk, None, "none")], store))
        store.commit(rows, np.arange(len(chunk), dtype=np.int32))


def _new_cache(model: Runnable, *rooms: int) -> KvCache:
    """A cache for one sequence of each of these lengths."""
    return KvCache(model.new_store(sum(map(num_blocks_for, rooms))))
