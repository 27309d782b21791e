"""A request's buffers are its own, and grow with what is asked for."""

from __future__ import annotations

import numpy as np

from decoding.costs.price import DraftBudget
from tests.decoding.drafting.one_tree.growing import drafter_of, new_session, request_of, verify

LOOP = [1, 2, 3, 4, 5, 6, 7] * 4


def test_a_tree_that_needs_more_room_gets_it_and_is_learned_from_once() -> None:
    request = request_of(LOOP)
    drafter = drafter_of(new_session(), request)
    for max_nodes in (64, 200, 20, 300):
        tree = drafter.propose(DraftBudget(max_nodes))
        tree.check_integrity()
        assert tree.num_drafted == max_nodes
        assert verify(drafter, request, tree, lambda token: token % 7 + 1) == max_nodes
        assert drafter.finish()["context"] == request.num_output


def test_requests_of_a_session_share_its_stores_and_what_the_server_learned_and_nothing_else() -> None:
    session = new_session()
    one, other = (drafter_of(session, request_of(LOOP))._buffers.record for _ in range(2))
    assert one.levels.session is other.levels.session
    assert one.levels.server is other.levels.server
    assert one.stores.ngrams is other.stores.ngrams
    assert one.tokens is not other.tokens
    assert one.room.candidates.ids is not other.room.candidates.ids
    assert one.levels.request.chances is not other.levels.request.chances


def test_replies_that_grow_together_forget_nothing_while_their_session_has_memory() -> None:
    session, random = new_session(), np.random.default_rng(0)
    requests = [request_of(LOOP) for _ in range(8)]
    drafters = [drafter_of(session, request) for request in requests]
    for _ in range(60):
        for request, drafter in zip(requests, drafters, strict=True):
            drafter.probe()
            request.extend(random.integers(0, 1000, 3).astype(np.int32))
        assert session.replies.is_sound(1000)  # it has a place for every token, or all that there may be
    assert session.replies.arrays.counters[0] > 8 * 59 * 3


def test_a_text_is_given_room_when_it_is_first_probed_and_not_while_its_request_waits() -> None:
    short, long = (drafter_of(new_session(), request_of(LOOP * times)) for times in (1, 200))
    assert long._index.arrays.slots.nbytes == short._index.arrays.slots.nbytes
    long.probe()
    assert long._index.arrays.slots.nbytes > 10 * short._index.arrays.slots.nbytes
