"""The desk of one request's trees: all arrays that they grow from and into, where compiled code finds them.

Owns the record and its layout. Knows nothing of how a tree grows. Compiled functions are handed the desk's address
`at`, and read from it what they use.
"""

from __future__ import annotations

from typing import NamedTuple

import numba as nb
import numpy as np
from numpy.typing import NDArray

from decoding.core.request import Request
from decoding.core.sampling_params import SamplingParams
from decoding.core.tree import IntArray
from decoding.drafting.draft_model.growth import Top
from decoding.drafting.tree import frontier, nodes
from decoding.drafting.tree.by_address import Kept, Layout
from decoding.drafting.tree.candidates import COUPLED, DraftLaw, draft_law
from decoding.drafting.tree.nodes import Nodes
from decoding.stores.context import MAX_SUFFIX, ContextArrays, ContextIndex
from decoding.stores.evidence import NUM_SOURCES
from decoding.stores.judge import Judge, Levels, below, meant_judge, start_over
from decoding.stores.ngram import LONGEST_NGRAM, NgramStore
from decoding.stores.successor_table import NO_TOKEN, NUM_SUCCESSORS, SuccessorArrays
from decoding.stores.suffixes import NOWHERE, SuffixArrays, SuffixIndex

MOST_FORESEEN, LONGEST_FORESEEN = 4, 64  # chains: one that the grammar forces, and guesses; tokens of each
SHORTEST_COPIED = 1  # tokens that an earlier occurrence shares with the text's end
MOST_CANDIDATES = MOST_FORESEEN + 1 + 3 * NUM_SUCCESSORS
_FIRST_NODES = 258  # as many as a tree of 64 is chosen from
NUM_KNOWN, NUM_NODES, IS_UNJUDGED, NUM_KEPT, LAST_KEPT, NUM_SAID, NUM_ASKED = range(7)  # see `Desk.counts`
FOUND, NUM_SHARED, IS_AGREED, IS_REPLY = range(4)  # see `Heard.matches`
ROOT_ROW, NO_ROW = -1, -2  # see `Room.rows`
_MOST_FREE = 64  # desks, of a quarter of a megabyte each
_FIRST_COUNTS = (0, 1, 0, 0, NOWHERE, 0, 0)
_MEANT = meant_judge()
_TRIED, _TRUST, _PACE = 64.0, 32.0, 0.01  # of a request's judge


class Heard(NamedTuple):
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
    path: int32 [32]; context: int32 [4]."""

    shares: NDArray[np.float64]
    weights: NDArray[np.float64]
    places: IntArray
    variates: NDArray[np.float64]
    path: IntArray
    context: IntArray


class ModelRows(NamedTuple):
    """What the draft model runs for a tree. tokens, parents: int32 [n], of its rows, as `DraftRows`; top: what it says
    after the root, at place 0, and after row i, at place i + 1."""

    tokens: IntArray
    parents: IntArray
    top: Top


class Room(NamedTuple):
    """For a tree of n nodes and what is opened ahead of it. heap: `frontier`'s; rows: int32 [n], the draft model's row
    that ran each node, `ROOT_ROW` for the root's own, `NO_ROW` for none."""

    nodes: Nodes
    heap: NDArray[np.int64]
    heard: Heard
    rows: IntArray
    run: ModelRows


class Sides(NamedTuple):
    """Who takes part. uses_*: the context, n-grams of one or two tokens, and of three or four; vocab_size: of the
    tokens that the draft model shares with the target; runs_ahead: whether it runs a row in one forward with its
    parent's; max_depth: of a tree."""

    uses_context: bool
    uses_short: bool
    uses_long: bool
    vocab_size: int
    runs_ahead: bool
    max_depth: int


class Foreseen(NamedTuple):
    """Chains that the request itself knows of, from the root on. sizes: int32 [F], 0 for none; tokens: int32 [F, L];
    reasons: int8 [F, L], why each may come, as `evidence` counts them."""

    sizes: IntArray
    tokens: IntArray
    reasons: NDArray[np.int8]


class Stores(NamedTuple):
    """Arrays of the request's context index, and of its session's replies and n-grams."""

    context: ContextArrays
    replies: SuffixArrays
    ngrams: SuccessorArrays


class Desk(NamedTuple):
    """tokens: int32 [T], the request's, with room for all that may come. counts: int64 [7]: tokens up to the root of
    the tree under way, and its nodes; 1 while the root is opened and the token after it not judged; tokens that are
    among the session's replies or never will be, and the position of the last of them there; places of `run` that the
    draft model has filled, and rows that it was asked for. foretold: int64 [1 + S], how many of the tokens that came
    each source had thought likeliest."""

    tokens: IntArray
    counts: NDArray[np.int64]
    foretold: NDArray[np.int64]
    foreseen: Foreseen
    room: Room
    scratch: Scratch
    stores: Stores
    levels: Levels
    law: DraftLaw
    sides: Sides


def new_room(num_nodes: int) -> Room:
    heard = Heard(
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
    return Room(tree, heap, heard, np.zeros(num_nodes, np.int32), run)


def _blank() -> Desk:
    """A desk of no request."""
    return Desk(
        tokens=np.zeros(1, np.int32),
        counts=np.zeros(len(_FIRST_COUNTS), np.int64),
        foretold=np.zeros(NUM_SOURCES, np.int64),
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
        ),
        stores=Stores(ContextIndex(1, SHORTEST_COPIED).arrays, SuffixIndex(0).arrays, NgramStore(0).arrays),
        levels=Levels(below(_MEANT, _TRIED, _PACE, _TRUST), _MEANT, _MEANT),
        law=draft_law(SamplingParams(max_tokens=1), COUPLED),
        sides=Sides(True, True, True, 1, True, 1),
    )


_BLANK = _blank()
LAYOUT = Layout(_BLANK)
read_desk, _write_desk = LAYOUT.read, LAYOUT.write


@nb.njit(cache=True)
def _write(at: int, desk: Desk) -> None:
    _write_desk(at, desk)


_write_stores = LAYOUT.write_field("stores")


@nb.njit(cache=True)
def write_stores(at: int, stores: Stores) -> None:
    """In place of those that are kept."""
    _write_stores(at, stores)


class Desks:
    """Desks for requests. That of a request that is through is given to the next: its arrays lie in memory already,
    where fresh ones would take longer than all else that starting takes."""

    def __init__(self) -> None:
        self._free: list[Kept[Desk]] = []

    def take(self, request: Request, sides: Sides, judges: tuple[Judge, Judge], stores: Stores) -> Kept[Desk]:
        """judges: the session's, with whose view the request begins, and the server's."""
        kept = self._free.pop() if self._free else Kept(LAYOUT, _write, _blank())
        desk, (session, server) = kept.record, judges
        start_over(desk.levels.request, session, _TRUST)
        desk.counts[:], desk.foretold[:], desk.foreseen.sizes[:] = _FIRST_COUNTS, 0, 0
        levels, law = Levels(desk.levels.request, session, server), draft_law(request.sampling, COUPLED)
        kept.keep(desk._replace(tokens=request.buffer, stores=stores, levels=levels, law=law, sides=sides))
        return kept

    def give_back(self, desk: Kept[Desk]) -> None:
        """Its request is through, and nothing of it stays."""
        if len(self._free) < _MOST_FREE:
            levels = _BLANK.levels._replace(request=desk.record.levels.request)
            desk.record = desk.record._replace(tokens=_BLANK.tokens, stores=_BLANK.stores, levels=levels)
            self._free.append(desk)
