"""What a sequence asks of a step, and what its prompt is worth to drafting."""

from __future__ import annotations

import numpy as np
import pytest

from decoding.costs.acceptance import Acceptance, Brought, lately_of
from decoding.drafting.draft_model.state import DraftModelState
from decoding.drafting.one_tree.one_tree import PATIENCE
from decoding.drafting.registry import METHODS
from decoding.drafting.sequence_drafter import ActiveMethod, Choice, SequenceDrafter
from decoding.drafting.sources import Sources
from tests.decoding.drafting.one_tree.growing import drafter_of, new_session, request_of


def drafting(method: str, has_model: bool = False) -> SequenceDrafter:
    session, request = new_session(), request_of([1, 2, 3], method=method)
    drafter = SequenceDrafter(request, session, None, None)
    state = None
    if has_model:
        state = drafter_of(session, request, has_model=True)._state
        assert isinstance(state, DraftModelState)
    own = METHODS[method].start(request, Sources(session, state))
    acceptance, most_nodes = Acceptance(), METHODS[method].most_nodes
    drafter.begin(
        ActiveMethod(choice=Choice(method), drafter=own, most_nodes=most_nodes, acceptance=acceptance, state=state)
    )
    return drafter


def test_a_prompt_is_learned_from_by_auto_where_that_is_worth_it_and_by_who_lives_by_it_always() -> None:
    for method, is_weighed in (("auto", True), ("none", True), ("spine", False), ("stand", False), ("recycle", False)):
        drafter = drafting(method)
        assert drafter.learns_prompt(True)
        assert drafter.learns_prompt(False) == (not is_weighed)


def test_where_the_draft_model_is_asked_of_late_auto_learns_nothing_from_a_prompt() -> None:
    drafter = drafting("auto", has_model=True)
    for rate, learns in ((0.4, True), (0.6, False)):
        drafter.session.acceptance_models(False)[0].asked_rate[0] = rate
        assert drafter.learns_prompt(True) == learns


def test_a_reply_begins_with_what_the_sessions_last_one_came_to() -> None:
    drafter = drafting("auto")
    for _ in range(30):
        drafter.active.acceptance.update(Brought(9, 21), Brought(3, 5), 0.5)
    drafter.finish()
    before = lately_of(drafter.session.acceptance_models(False)[0].lately.tolist())
    assert before.own == pytest.approx((9, 21), rel=0.05)
    assert before.alone == pytest.approx((3, 5), rel=0.05)
    assert before.draft_seconds == 0.5
    lately = Acceptance(before)
    lately.update(Brought(1, 1))
    assert lately.own == pytest.approx((7, 16), rel=0.05), "a quarter of a new beginning"


def test_the_draft_model_reads_ahead_where_most_trees_ask_it() -> None:
    for share in (0.2, 0.8):
        drafter = drafting("auto", has_model=True)
        drafter.session.acceptance_models(False)[0].asked_rate[0] = share
        assert drafter.reads_ahead == (share > 0.5)
    assert not drafting("auto").reads_ahead


@pytest.mark.parametrize("method", ["auto", "none", "lookup", "suffix", "spine"])
def test_a_demand_changes_nothing(method: str) -> None:
    drafter = drafting(method)
    assert drafter.demand() == drafter.demand()
    own = drafter.active.drafter
    first = own.probe()
    assert own.probe() == first, "asked twice at one token, the stores learn once"
    assert drafter.demand() == drafter.demand()


def test_who_naps_is_not_probed() -> None:
    drafter = drafting("auto")
    for token in range(PATIENCE):
        assert drafter.probe() == 0.0
        drafter.request.extend(np.array([100 + token], np.int32))
    assert drafter.probe() is None
    drafter.request.extend(np.array([8], np.int32))
    assert drafter.probe() == 0.0


@pytest.mark.parametrize("method", [name for name, each in METHODS.items() if each.draft_model == "unused"])
def test_a_method_of_a_fixed_budget_asks_for_it_at_every_step_and_others_are_weighed(method: str) -> None:
    drafter, most_nodes = drafting(method), METHODS[method].most_nodes
    is_fixed, demand = most_nodes is not None, drafter.demand()
    assert (demand.max_nodes, demand.most_nodes) == (0 if most_nodes == 0 else None, most_nodes)
    assert demand.harvests == (drafter.num_top > 0)
    if demand.max_nodes == 0:
        assert drafter.probe() is None
    elif is_fixed:
        assert [drafter.probe() for _ in range(3)] == [1.0] * 3
        assert demand.hit_rate == 1.0
