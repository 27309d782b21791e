"""What a drafter may draw on."""

from __future__ import annotations

from typing import NamedTuple

from decoding.drafting.draft_model.state import DraftModelState
from decoding.drafting.one_tree.desk import Desks
from decoding.drafting.one_tree.foresight import Foresight
from decoding.drafting.stand.static_tree import StaticTree
from decoding.stores.session import Session


class Sources(NamedTuple):
    """The session's stores, the sequence's part of the draft model where the method needs one, the static tree
    that the server was started with, if any, what the request itself knows of its reply, and the desks
    that one tree may have one of."""

    stores: Session
    state: DraftModelState | None = None
    tree: StaticTree | None = None
    foresight: Foresight | None = None
    desks: Desks | None = None
