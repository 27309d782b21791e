"""The buffers of one request's trees: all arrays that they grow from and into, where compiled code finds them.

Owns the record and its layout. Knows nothing of how a tree grows. Compiled functions are handed the address `at` of the
buffers, and read from it what they use.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from decoding.core.request import Request
from decoding.core.sampling_params import SamplingParams
from decoding.core.tree import IntArray
from decoding.drafting.draft_model.growth import Top
from decoding.drafting.tree import frontier, nodes
from decoding.drafting.tree.candidates import COUPLED, DraftLaw, draft_law
from decoding.drafting.tree.nodes import Nodes
from decoding.kernels.cpu.by_address import Kept, Layout
from decoding.kernels.numba_kernel import kernel
from decoding.stores.acceptance_model import AcceptanceModel, Levels, below, unmeasured_model
from decoding.stores.context import MAX_SUFFIX, ContextArrays, ContextIndex
from decoding.stores.evidence import NUM_SOURCES
from decoding.stores.ngram import LONGEST_NGRAM, NgramStore
from decoding.stores.successor_table import NO_TOKEN, NUM_SUCCESSORS, SuccessorArrays
from decoding.stores.suffixes import NOWHERE, SuffixArrays, SuffixIndex

MOST_FORESEEN, LONGEST_FORESEEN = 4, 64  # chains: one that the grammar forces, and guesses; tokens of each
SHORTEST_COPIED = 1  # tokens that an earlier occurrence shares with the text's end
MOST_CANDIDATES = MOST_FORESEEN + 1 + 3 * NUM_SUCCESSORS
_FIRST_NODES = 258  # as many as a tree of 64 is chosen from
NUM_KNOWN, NUM_NODES, IS_UNLEARNED, NUM_KEPT, LAST_KEPT, NUM_SAID, NUM_ASKED = range(7)  # see `TreeBuffers.counts`
FOUND, NUM_SHARED, IS_AGREED, IS_REPLY = range(4)  # see `Candidates.matches`
ROOT_ROW, NO_ROW = -1, -2  # see `Room.rows`
_FIRST_COUNTS = (0, 1, 0, 0, NOWHERE, 0, 0)
_UNMEASURED = unmeasured_model()
_TRIED, _TRUST, _LEARNING_RATE = 64.0, 32.0, 0.01  # of a request's acceptance model


class Candidates(NamedTuple):
    """What may follow each of n nodes. ids: int32 [n, C]; classes: int16 [n, C, 1 + S], what each source says of them;
    chances: float32 [n, C], given the node; order: int8 [n, C], the likeliest first; sizes: int32 [n], how many there
    are, -1 before a node is opened; firsts: int32 [n, 1 + S], what each source thinks likeliest, -1 for nothing;
    matches: int64 [n, 4], where the path's end stood before: position (-1: nowhere), tokens shared, whether after other
    places the same came, and whether it is in the session's replies; follows: int32 [n], bits of the foreseen chains
    that the path has followed so far; known: int32 [n], what was likeliest without the draft model, -1 for nothing."""

    ids: IntArray
    classes: NDArray[np.int16]
    chances: NDArray[np.float32]
    order: NDArray[np.int8]
    sizes: IntArray
    firsts: IntArray
    matches: NDArray[np.int64]
    follows: IntArray
    known: IntArray


class Scratch(NamedTuple):
    """Room for one node. shares: float64 [1, 10]; weights: float64 [10]; places: int32 [10]; variates: float64 [C];
    path: int32 [32]; context: int32 [4]; others: int16 [1 + S], what each source says of tokens that it does not name;
    root: int32 [1], the path to the root alone."""

    shares: NDArray[np.float64]
    weights: NDArray[np.float64]
    places: IntArray
    variates: NDArray[np.float64]
    path: IntArray
    context: IntArray
    others: NDArray[np.int16]
    root: IntArray


class ModelRows(NamedTuple):
    """What the draft model runs for a tree. tokens, parents: int32 [n], of its rows, as `DraftRows`; top: what it says
    after the root, at place 0, and after row i, at place i + 1; of a block at depth i + 1."""

    tokens: IntArray
    parents: IntArray
    top: Top


class Room(NamedTuple):
    """For a tree of n nodes and what is opened ahead of it. heap: `frontier`'s; rows: int32 [n], the draft model's row
    that ran each node, `ROOT_ROW` for the root's own, `NO_ROW` for none; waiting: int32 [n], nodes of one round that
    the draft model might be run on."""

    nodes: Nodes
    heap: NDArray[np.int64]
    candidates: Candidates
    rows: IntArray
    waiting: IntArray
    run: ModelRows


class Sides(NamedTuple):
    """Who takes part. uses_*: the context, n-grams of one or two tokens, and of three or four; vocab_size: of the
    tokens that the draft model shares with the target; runs_ahead: whether it runs a row in one forward with its
    parent's; is_block: whether it says in one go what follows each depth, whatever the path."""

    uses_context: bool
    uses_short: bool
    uses_long: bool
    vocab_size: int
    runs_ahead: bool
    is_block: bool


class Foreseen(NamedTuple):
    """Chains that the request itself knows of, from the root on. sizes: int32 [F], 0 for none; tokens: int32 [F, L];
    reasons: int8 [F, L], why each may come, as `evidence` counts them."""

    sizes: IntArray
    tokens: IntArray
    reasons: NDArray[np.int8]

    def write(self, chains: Iterable[tuple[list[int], list[int]]]) -> None:
        """In place of those that are kept. chains: tokens and reasons of each, the likeliest first."""
        self.sizes[:] = 0
        for chain, (tokens, reasons) in enumerate(chains):
            size = self.sizes[chain] = len(tokens)
            self.tokens[chain, :size], self.reasons[chain, :size] = tokens, reasons


class Stores(NamedTuple):
    """Arrays of the request's context index, and of its session's replies and n-grams."""

    context: ContextArrays
    replies: SuffixArrays
    ngrams: SuccessorArrays


class TreeBuffers(NamedTuple):
    """tokens: int32 [T], the request's, with room for all that may come. counts: int64 [7]: tokens up to the root of
    the tree under way, and its nodes; 1 while the root is opened and the token after it not learned from; tokens that
    are among the session's replies or never will be, and the position of the last of them there; places of `run` that
    the draft model has filled, and rows that it was asked for. predicted: int64 [1 + S], how many of the tokens that
    came each source had thought likeliest."""

    tokens: IntArray
    counts: NDArray[np.int64]
    predicted: NDArray[np.int64]
    foreseen: Foreseen
    room: Room
    scratch: Scratch
    stores: Stores
    levels: Levels
    law: DraftLaw
    sides: Sides


def new_room(num_nodes: int) -> Room:
    candidates = Candidates(
        ids=np.zeros((num_nodes, MOST_CANDIDATES), np.int32),
        classes=np.zeros((num_nodes, MOST_CANDIDATES, NUM_SOURCES), np.int16),
        chances=np.zeros((num_nodes, MOST_CANDIDATES), np.float32),
        order=np.zeros((num_nodes, MOST_CANDIDATES), np.int8),
        sizes=np.full(num_nodes, -1, np.int32),
        firsts=np.full((num_nodes, NUM_SOURCES), NO_TOKEN, np.int32),
        matches=np.full((num_nodes, 4), -1, np.int64),
        follows=np.zeros(num_nodes, np.int32),
        known=np.full(num_nodes, NO_TOKEN, np.int32),
    )
    top = Top(np.zeros((num_nodes, NUM_SUCCESSORS), np.int32), np.zeros((num_nodes, NUM_SUCCESSORS), np.float32))
    run = ModelRows(np.zeros(num_nodes, np.int32), np.zeros(num_nodes, np.int32), top)
    tree, heap = nodes.allocate(num_nodes), frontier.allocate(num_nodes)
    return Room(tree, heap, candidates, np.zeros(num_nodes, np.int32), np.zeros(num_nodes, np.int32), run)


def _blank() -> TreeBuffers:
    """Those of no request."""
    return TreeBuffers(
        tokens=np.zeros(1, np.int32),
        counts=np.array(_FIRST_COUNTS, np.int64),
        predicted=np.zeros(NUM_SOURCES, np.int64),
        foreseen=Foreseen(
            np.zeros(MOST_FORESEEN, np.int32),
            np.zeros((MOST_FORESEEN, LONGEST_FORESEEN), np.int32),
            np.zeros((MOST_FORESEEN, LONGEST_FORESEEN), np.int8),
        ),
        room=new_room(_FIRST_NODES),
        scratch=Scratch(
            np.zeros((1, NUM_SUCCESSORS)),
            np.zeros(NUM_SUCCESSORS),
            np.zeros(NUM_SUCCESSORS, np.int32),
            np.zeros(MOST_CANDIDATES),
            np.zeros(MAX_SUFFIX, np.int32),
            np.zeros(LONGEST_NGRAM, np.int32),
            np.zeros(NUM_SOURCES, np.int16),
            np.zeros(1, np.int32),
        ),
        stores=Stores(ContextIndex(1, SHORTEST_COPIED).arrays, SuffixIndex(0).arrays, NgramStore(0).arrays),
        levels=Levels(_UNMEASURED, _UNMEASURED, _UNMEASURED),
        law=draft_law(SamplingParams(max_tokens=1), COUPLED),
        sides=Sides(True, True, True, 1, True, False),
    )


LAYOUT = Layout(_blank())
read_buffers, _write_buffers = LAYOUT.read, LAYOUT.write


@kernel(borrows=True)
def _write(at: int, buffers: TreeBuffers) -> None:
    _write_buffers(at, buffers)


_write_stores = LAYOUT.write_field("stores")


@kernel(borrows=True)
def write_stores(at: int, stores: Stores) -> None:
    """In place of those that are kept."""
    _write_stores(at, stores)


def new_buffers(
    request: Request, sides: Sides, models: tuple[AcceptanceModel, AcceptanceModel], stores: Stores
) -> Kept[TreeBuffers]:
    """A request's own. models: the session's, with whose view the request begins, and the server's."""
    session, server = models
    levels = Levels(below(session, _TRIED, _LEARNING_RATE, _TRUST), session, server)
    law = draft_law(request.sampling, COUPLED)
    own = _blank()._replace(tokens=request.key_buffer, stores=stores, levels=levels, law=law, sides=sides)
    return Kept(LAYOUT, _write, own)
