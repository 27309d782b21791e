"""The trial at start: whether a token has the same bits however it is run, by the forwards that will serve. Where it
has not, it says which comparison showed that, behind which layer, and by how much.

Knows how to run tokens in two ways from the self-test. Invariant: it writes to blocks that nobody holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import NamedTuple, Protocol

import torch

from decoding.cache.batch import StepBatch
from decoding.cache.block_pool import BLOCK_LEN
from decoding.cache.kv_store import KvStore
from decoding.errors import ModelRefused
from decoding.model.device.graph_runner import FIXED_ROWS, GraphRunner
from decoding.model.device.runner import Runner
from decoding.model.features import FeatureTap
from decoding.model.self_test import ROOM, Testable, self_test_case, trees_and_paths, whole_and_pieces

# Shape suffixes: R tokens that need logits, V vocabulary, E model width, D layers and the last one's output.
NUM_SEQUENCES = 12  # of the self-test's room, that the trial holds at a time
FEW_PIECES, MORE_PIECES = (1, 17, 2, 3), (64, 96, 128)  # and the rest
MOST_COMPARED = 256  # tokens' logits, that any forward has room for
Rows = Sequence[torch.Tensor]  # [V] each


class Exactness(NamedTuple):
    """rows: within steps of up to so many tokens a token's logits have the same bits in a tree, in a chain, as part of
    a prompt, after a prefix that is found, and in any batch; 0 if in none. reason: what differed in larger ones, in
    sentences; None where nothing was found to."""

    rows: int
    reason: str | None = None


class Tried(Testable, Runner, Protocol):
    """num_layers: of the decoder."""

    is_row_exact: bool

    @property
    def num_layers(self) -> int: ...

    def tapped(self, layers: Sequence[int]) -> AbstractContextManager[FeatureTap]: ...


class Trial(NamedTuple):
    """The same tokens in two ways, which `name` tells. run: their logits, in both."""

    name: str
    run: Callable[[Testable], tuple[Rows, Rows]]


def exactness(model: Tried, runner: Runner, store: KvStore, most_rows: int) -> Exactness:
    """What a trial finds. store: of which nobody holds any blocks, and to which it writes. most_rows: of any step.

    On a device matrix products round by the number of rows that they have, so steps of up to `FIXED_ROWS` tokens all
    replay the forward of so many; with `--exact` they do not, and larger steps and prompts have the same bits, too.
    """
    if runner is model and not model.is_row_exact:
        return Exactness(0, "Forwards run operation by operation, in which sums may depend on the number of rows.")
    num_slots = store.num_blocks * BLOCK_LEN
    room = min(num_slots, model.max_model_len)
    if num_slots < NUM_SEQUENCES * ROOM or room < FIXED_ROWS:
        return Exactness(0, f"The cache has room for {num_slots} tokens, too few to try it.")
    largest = max(FIXED_ROWS, min(most_rows, room)) if model.is_row_exact else FIXED_ROWS
    replayed, case = _Replayed(model, runner, store), self_test_case(model.vocab_size)
    tree = Trial("a tree and its paths token by token", lambda each: trees_and_paths(each, case))
    if (reason := _differences(tree, replayed)) is not None:
        return Exactness(0, reason)
    for num_rows in sorted({largest, FIXED_ROWS}, reverse=True):
        found = _differences(_in_pieces(num_rows), replayed)
        if found is None:
            return Exactness(num_rows, reason)
        reason = found
    return Exactness(0, reason)


def _in_pieces(num_rows: int) -> Trial:
    pieces = list(FEW_PIECES)
    for size in MORE_PIECES:
        pieces += [size] if sum(pieces) + size < num_rows else []
    pieces.append(num_rows - sum(pieces))
    name = f"a prompt of {num_rows} tokens and the same in pieces of {', '.join(map(str, pieces))}"
    num_compared = min(num_rows, MOST_COMPARED)
    return Trial(name, partial(whole_and_pieces, sizes=pieces, num_compared=num_compared))


class _Replayed:
    """A model whose forwards are a runner's, over the runner's store."""

    def __init__(self, model: Tried, runner: Runner, store: KvStore) -> None:
        self.dtype, self.kv_dtype, self.weights = model.dtype, model.kv_dtype, model.weights
        self.vocab_size = model.vocab_size
        self.num_parameters, self.max_model_len, self.state_bytes = model.num_parameters, model.max_model_len, 0
        self.model, self.runner, self.store = model, runner, store

    def new_store(self, _num_blocks: int) -> KvStore:
        return self.store

    def forward(self, batch: StepBatch) -> torch.Tensor:
        return self.runner.launch(batch).logits_RV.clone()


class _Watched(_Replayed):
    """The same operations one by one, over the same buffers. seen: [D, R, E], of each forward that gives logits."""

    def __init__(self, replayed: _Replayed, tap: FeatureTap) -> None:
        super().__init__(replayed.model, replayed.runner, replayed.store)
        self._tap = tap
        self.seen: list[torch.Tensor] = []

    def forward(self, batch: StepBatch) -> torch.Tensor:
        if isinstance(self.runner, GraphRunner):
            logits_RV = self.runner.run_operations(batch)
        else:
            logits_RV = self.runner.launch(batch).logits_RV.clone()
        if len(batch.logit_rows_R):
            rows_R = torch.from_numpy(batch.logit_rows_R).to(logits_RV.device)
            self.seen.append(torch.stack([hidden_NE[rows_R] for _, hidden_NE in sorted(self._tap.seen.items())]))
        return logits_RV


def _differences(trial: Trial, replayed: _Replayed) -> str | None:
    """What differs between both ways, in sentences; None if nothing does."""
    one, other = trial.run(replayed)
    count = sum(not torch.equal(*pair) for pair in zip(one, other, strict=True))
    if count == 0:
        return None
    share = _share(torch.stack(list(one)), torch.stack(list(other)))
    sentence = f"Of {trial.name}, {count} of {len(one)} tokens have other logits, by up to {share:.2g} of the largest."
    try:
        return f"{sentence} {_first_layer(trial, replayed)}"
    except ModelRefused as refused:
        return f"{sentence} Behind which layer cannot be told: {refused}."


def _first_layer(trial: Trial, replayed: _Replayed) -> str:
    """Where the two ways part, in a sentence. Raises ModelRefused where layers cannot be watched."""
    num_layers = replayed.model.num_layers
    with replayed.model.tapped(range(num_layers + 1)) as tap:
        watched = _Watched(replayed, tap)
        one, other = trial.run(watched)
        hidden_DRE = torch.cat(watched.seen, 1)
    for layer, (one_RE, other_RE) in enumerate(_halves(hidden_DRE)):
        if not torch.equal(one_RE, other_RE):
            place = f"layer {layer - 1} of 0 to {num_layers - 1}" if layer else "the embedding"
            return f"Hidden states differ first behind {place}, by up to {_share(one_RE, other_RE):.2g} of the largest."
    if all(map(torch.equal, one, other)):
        return "Run operation by operation they have the same: replays alone differ."
    return "Hidden states are the same behind all layers: the last norm or the head differs."


def _halves(hidden_DRE: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Of each layer, the hidden states in the first way and in the second."""
    return ((one_RE, other_RE) for one_RE, other_RE in (each.chunk(2) for each in hidden_DRE))


def _share(one: torch.Tensor, other: torch.Tensor) -> float:
    """The largest difference, as a share of the largest number."""
    return float((one.float() - other.float()).abs().max() / one.float().abs().max().clamp(min=1e-30))
