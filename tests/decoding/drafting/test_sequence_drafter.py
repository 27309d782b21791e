"""What a session's looks for trees have led to says what a prompt is worth to drafting."""

from __future__ import annotations

import pytest

from decoding.drafting import registry
from decoding.drafting.draft_model.state import DraftModelState
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
    own = registry.METHODS[method].start(request, Sources(session, state))
    drafter.active = ActiveMethod(choice=Choice(method), drafter=own, default_nodes=None, state=state)
    return drafter


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_a_prompt_brings_auto_as_much_as_looks_find_trees_and_others_all(share: float) -> None:
    for method, is_weighed in (("auto", True), ("none", True), ("spine", False), ("stand", False), ("recycle", False)):
        drafter = drafting(method)
        drafter.session.judges(False)[0].looks[0] = share
        assert drafter.harvest_share(True) == pytest.approx(share if is_weighed else 1.0)
        assert drafter.harvest_share(False) == (0.0 if is_weighed else 1.0)


def test_where_there_is_a_draft_model_a_prompt_brings_auto_nothing() -> None:
    assert drafting("auto").harvest_share(True) > 0
    assert drafting("auto", has_model=True).harvest_share(True) == 0


def test_the_draft_model_reads_ahead_where_most_looks_ask_it() -> None:
    for share in (0.2, 0.8):
        drafter = drafting("auto", has_model=True)
        drafter.session.judges(False)[0].looks[1] = share
        assert drafter.reads_ahead == (share > 0.5)
    assert not drafting("auto").reads_ahead
