"""SuffixDecoding: what followed the end of the text before, in this request or in replies of its session, by counts.

Owns the growth of the speculation tree and the drafter. Knows nothing of probabilities of the target.
Invariant: a node's share of its tree is that of its parent times its count over those of its siblings and itself.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from decoding.core.picture import end_of_pictures
from decoding.core.ranking import ranked
from decoding.core.request import Request
from decoding.core.top_tokens import TopTokens
from decoding.core.tree import DraftTree, Source, Verdict
from decoding.costs.price import DraftBudget
from decoding.drafting.drafter import FixedBudgetDrafter
from decoding.drafting.tree.limits import Limits, limits_of
from decoding.drafting.tree.nodes import Nodes, allocate, put_node, put_root, to_tree
from decoding.kernels.numba_kernel import kernel
from decoding.stores.session import Session
from decoding.stores.suffixes import (
    MAX_MATCH,
    NOWHERE,
    Occurrences,
    SuffixArrays,
    SuffixIndex,
    find_occurrences,
    next_position,
    place_of,
)

FACTOR = 1  # nodes for each token that matches
LEAST_SHARE = 0.1
_MOST_CHILDREN = 10  # no more have a tenth each

_CONTEXT, _NGRAM = np.int64(Source.CONTEXT), np.int64(Source.NGRAM)
_MOST_BYTES = 2**30  # of one request's index: it ends with the request


class SuffixDrafter(FixedBudgetDrafter):
    """SuffixDecoding (Oliaro et al., arXiv 2411.04975, section 3; constants of Arctic Inference).

    For every length at which the end of the text occurs before, in the request's own tokens and in the session's
    replies (this one's as it comes, as in Arctic Inference), a tree grows by its likeliest continuations; the one
    whose shares sum to most is proposed. "branches" in `speculation.without` leaves one child for each node: a chain.
    """

    def __init__(self, request: Request, session: Session) -> None:
        super().__init__(request)
        self._replies = session.replies
        self._own = SuffixIndex(_MOST_BYTES)
        self._own_last = self._reply_last = NOWHERE  # positions
        self._num_indexed = end_of_pictures(request.pictures)

    def propose(self, budget: DraftBudget) -> DraftTree:
        self._catch_up()
        speculation, text = self._request.speculation, self._request.tokens[-MAX_MATCH:]
        limits, is_chain = limits_of(budget, speculation.max_depth), "branches" in speculation.without
        return to_tree(*speculate(self._own.arrays, self._replies.arrays, text, limits, is_chain))

    def observe(self, tree: DraftTree, verdict: Verdict, top: TopTokens | None) -> None:  # noqa: ARG002
        self._catch_up()

    def _catch_up(self) -> None:
        """Index the tokens that are new: all of them for the request, those of the reply for the session."""
        new = self._request.tokens[self._num_indexed :]
        num_prompt = max(0, len(self._request.prompt) - self._num_indexed)
        self._own_last = self._own.extend(new, self._own_last)
        self._reply_last = self._replies.extend(new[num_prompt:], self._reply_last)
        self._num_indexed = self._request.num_tokens


class _Candidates(NamedTuple):
    """Nodes that may come next, each array [c]: the share and parent of each, and its members [firsts, ends)."""

    shares: NDArray[np.float64]
    parents: NDArray[np.int32]
    firsts: NDArray[np.int32]
    ends: NDArray[np.int32]


class _Members(NamedTuple):
    """A node, its share, and its members [first, end) among all."""

    node: int
    share: float
    first: int
    end: int


@kernel
def speculate(
    own: SuffixArrays, replies: SuffixArrays, text: NDArray[np.int32], limits: Limits, is_chain: bool
) -> tuple[Nodes, int]:
    """The best tree of either index (the paper's algorithm 2), and how many nodes it has, root included.

    text: int32 [t], what is matched, its last token the root. Of equal sums the request's own goes first, then the
    longer match.
    """
    nodes = allocate(limits.max_nodes + 1)
    put_root(nodes, text[len(text) - 1])
    own_sum, own_members = _best_members(own, text, nodes, limits, is_chain)
    sum_, members = _best_members(replies, text, nodes, limits, is_chain)
    if sum_ > own_sum:
        num_nodes, _ = _grow(replies, members, nodes, limits, is_chain)
        nodes.sources[1:num_nodes] = _NGRAM
    else:
        num_nodes, _ = _grow(own, own_members, nodes, limits, is_chain)
        nodes.sources[1:num_nodes] = _CONTEXT
    return nodes, num_nodes


@kernel
def _best_members(
    index: SuffixArrays, text: NDArray[np.int32], nodes: Nodes, limits: Limits, is_chain: bool
) -> tuple[float, Occurrences]:
    """The sum of shares of the best tree, and what it grows from: the occurrences that match as long as it wants."""
    found = find_occurrences(index, text)
    best, best_end = 0.0, 0
    for end in range(1, len(found.lengths) + 1):
        if end < len(found.lengths) and found.lengths[end] == found.lengths[end - 1]:
            continue  # the match of that length has more occurrences
        _, sum_ = _grow(index, Occurrences(found.positions[:end], found.lengths[:end]), nodes, limits, is_chain)
        if sum_ > best:
            best, best_end = sum_, end
    return best, Occurrences(found.positions[:best_end], found.lengths[:best_end])


@kernel
def _grow(index: SuffixArrays, members: Occurrences, nodes: Nodes, limits: Limits, is_chain: bool) -> tuple[int, float]:
    """Add the likeliest candidate while there is room (algorithm 1); the nodes, root included, and their shares' sum.

    Each member belongs to the one node or candidate that its continuation has come to.
    """
    num_members = len(members.positions)
    if num_members == 0:
        return 1, 0.0
    most = min(limits.max_nodes, FACTOR * members.lengths[num_members - 1])
    at, candidates = members.positions.copy(), _allocate(most)
    num_nodes, sum_, count = 1, 0.0, 0
    if limits.max_depth > 0:
        count = _branch(index, at, _Members(0, 1.0, 0, num_members), candidates, 0, is_chain)
    while num_nodes <= most:
        place = _likeliest(candidates, count)
        if place < 0:
            break
        share, first, end = candidates.shares[place], candidates.firsts[place], candidates.ends[place]
        candidates.shares[place] = 0.0  # taken
        put_node(nodes, num_nodes, candidates.parents[place], index.tokens[place_of(index, at[first])], 0, share)
        sum_ += share
        if nodes.depths[num_nodes] < limits.max_depth:
            count = _branch(index, at, _Members(num_nodes, share, first, end), candidates, count, is_chain)
        num_nodes += 1
    return num_nodes, sum_


@kernel
def _allocate(most: int) -> _Candidates:
    room = _MOST_CHILDREN * (most + 1)
    return _Candidates(
        np.empty(room, np.float64), np.empty(room, np.int32), np.empty(room, np.int32), np.empty(room, np.int32)
    )


@kernel(borrows=True)
def _likeliest(candidates: _Candidates, count: int) -> int:
    """The first of those with the largest share, -1 where all are taken."""
    place, share = -1, 0.0
    for each in range(count):
        if candidates.shares[each] > share:
            place, share = each, candidates.shares[each]
    return place


@kernel
def _branch(
    index: SuffixArrays, at: NDArray[np.int64], members: _Members, candidates: _Candidates, count: int, is_chain: bool
) -> int:
    """Let a node's members go on to their next tokens, and make a candidate of each of these that is likely enough, of
    equal ones the longest match's and then the latest's first; how many candidates there are by then."""
    size = _step(index, at, members.first, members.end)
    tokens = np.empty(size, np.int32)  # their ids negated, so that equal ones come together, the smallest first
    for rank in range(size):
        tokens[rank] = -index.tokens[place_of(index, at[members.first + rank])]
    ranks, before = ranked(tokens), at[members.first : members.first + size].copy()
    for rank in range(size):
        at[members.first + rank] = before[ranks[rank]]
    begin, first = count, 0
    earliest = np.empty(_MOST_CHILDREN, np.int64)  # rank of each new candidate's first member
    for end in range(1, size + 1):
        if end < size and tokens[ranks[end]] == tokens[ranks[first]]:
            continue
        share = members.share * (end - first) / size
        if share >= LEAST_SHARE:
            slot = count
            while slot > begin and earliest[slot - begin - 1] > ranks[first]:
                earliest[slot - begin] = earliest[slot - begin - 1]
                _copy(candidates, slot - 1, slot)
                slot -= 1
            earliest[slot - begin] = ranks[first]
            candidates.shares[slot], candidates.parents[slot] = share, members.node
            candidates.firsts[slot], candidates.ends[slot] = members.first + first, members.first + end
            count += 1
        first = end
    if is_chain and count > begin + 1:
        best = begin + int(np.argmax(candidates.shares[begin:count]))
        _copy(candidates, best, begin)
        count = begin + 1
    return count


@kernel(borrows=True)
def _copy(candidates: _Candidates, source: int, target: int) -> None:
    candidates.shares[target], candidates.parents[target] = candidates.shares[source], candidates.parents[source]
    candidates.firsts[target], candidates.ends[target] = candidates.firsts[source], candidates.ends[source]


@kernel(borrows=True)
def _step(index: SuffixArrays, at: NDArray[np.int64], first: int, end: int) -> int:
    """Let members [first, end) go on by a token, in place; how many do, those that end here being left out."""
    size = 0
    for member in range(first, end):
        position = next_position(index, at[member])
        if position >= 0:
            at[first + size] = position
            size += 1
    return size
