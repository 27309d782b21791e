"""What a drafter may draw on."""

from __future__ import annotations

from typing import NamedTuple

from decoding.drafting.draft_model.state import DraftModelState
from decoding.drafting.grammar import TreeGrammar
from decoding.drafting.one_tree.prediction import Prediction
from decoding.drafting.stand.static_tree import StaticTree
from decoding.stores.session import Session


class Sources(NamedTuple):
    """The session's stores, the sequence's part of the draft model where the method needs one, the static tree
    that the server was started with, if any, and the request's prediction and grammar, if any."""

    stores: Session
    state: DraftModelState | None = None
    tree: StaticTree | None = None
    prediction: Prediction | None = None
    grammar: TreeGrammar | None = None
