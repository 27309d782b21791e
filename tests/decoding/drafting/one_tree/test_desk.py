"""Desks go from request to request: nothing of the one before may be seen in the next one's trees."""

from __future__ import annotations

import pytest

from decoding.core.request import Request
from decoding.costs.price import NO_STAKES, DraftBudget
from decoding.drafting.draft_model.state import DraftModelState
from decoding.drafting.one_tree.desk import Desks
from decoding.drafting.one_tree.one_tree import OneTree
from decoding.drafting.sources import Sources
from tests.decoding.drafting.one_tree.growing import SHARED_VOCAB, grow, new_session, no_layers, request_of, verify

FIRST, SECOND = [1, 2, 3, 4, 5, 9, 1, 2, 3] * 4, [7, 5, 3, 1, 7, 5]


def start(request: Request, desks: Desks) -> OneTree:
    return OneTree(request, Sources(new_session(), DraftModelState(request, no_layers(), SHARED_VOCAB), desks=desks))


def reply(drafter: OneTree, request: Request) -> list[list[int]]:
    """The trees of some steps in which the text goes round."""
    trees = []
    for _ in range(6):
        tree, _ = grow(drafter, lambda path: {(path[-1] if path else 0) % 7 + 1: 0.7, 30: 0.1}, DraftBudget(16))
        trees.append([*tree.tokens.tolist(), *tree.parents.tolist()])
        verify(drafter, request, tree, lambda token: token % 5 + 1, teaches=True)
    return trees


def test_a_request_drafts_the_same_at_a_desk_that_another_one_left() -> None:
    used, first, second = Desks(), request_of(FIRST, max_depth=6), request_of(SECOND, temperature=0.7)
    earlier = start(first, used)
    reply(earlier, first)
    assert sum(earlier.foretold.values()) > 0
    earlier.close()
    later = start(second, used)
    trees, foretold = reply(later, second), later.foretold

    again = request_of(SECOND, temperature=0.7)
    fresh = start(again, Desks())
    assert trees == reply(fresh, again)
    assert foretold == fresh.foretold
    assert len(set(map(tuple, trees))) > 1


def test_a_desk_that_is_left_holds_nothing_of_its_request() -> None:
    desks, request, session = Desks(), request_of(FIRST), new_session()
    drafter = OneTree(request, Sources(session, desks=desks))
    desk = drafter._desk
    assert desk.record.tokens is request.buffer
    drafter.close()
    record, own = desk.record, (session.ngrams.arrays, session.replies.arrays, *session.judges(is_sampled=False))
    assert record.tokens is not request.buffer
    assert not any(kept is each for kept in (*record.stores, *record.levels) for each in own)
    assert start(request_of(SECOND), desks)._desk is desk
    with pytest.raises(AttributeError):
        drafter.look(NO_STAKES)  # at what is another's desk now
