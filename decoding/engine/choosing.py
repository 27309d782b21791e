"""Which method drafts for a request: at its start, at its reviews, and when the draft model can do no more for it.

Owns the start and the change of a request's drafting. Knows nothing of steps or of how methods draft.
"""

from __future__ import annotations

import logging

from decoding.core.request import Request
from decoding.drafting import registry as drafters
from decoding.drafting.auto import AUTO, REVIEW_STEPS, STAND, Choice, candidates, choose
from decoding.drafting.draft_model.draft_model import DraftModel
from decoding.drafting.draft_model.seat import Refusal
from decoding.drafting.registry import METHODS, StartDrafter
from decoding.drafting.revision.revised import revise
from decoding.drafting.sources import Sources
from decoding.drafting.stand.static_tree import StaticTree
from decoding.drafting.teaching import TeachingDrafter
from decoding.engine.sequence import Drafting, Running
from decoding.errors import RequestRejected
from decoding.stores.session import Session

logger = logging.getLogger("gander.engine")


class Chooser:
    """draft_model: None where there is none; `methods` are those that can then be had."""

    def __init__(self, draft_model: DraftModel | None, tree: StaticTree | None = None) -> None:
        self.methods = drafters.available(draft_model is not None)
        self._draft_model = draft_model
        self._tree = tree
        self._warned: set[str] = set()

    def check(self, method: str) -> None:
        """Raise RequestRejected for a method that needs the draft model that is not there."""
        if method in METHODS and method not in self.methods:
            raise RequestRejected(
                f"speculation.method {method!r} needs a draft model, and this server has none",
                param="speculation.method",
                code="no_draft_model",
            )

    def start(self, running: Running, start_drafter: StartDrafter | None = None) -> None:
        """Put the method that the request asks for to work; start_drafter: instead of the method's."""
        self._take_up(running, self._choose(running.request, running.session, set()), start_drafter)

    def review(self, running: Running) -> None:
        """Every few steps of an "auto" request go on with what earns most."""
        request = running.request
        if (
            request.finish_reason is None
            and request.speculation.method == AUTO
            and running.stats.target_forwards % REVIEW_STEPS == 0
        ):
            choice = self._choose(request, running.session, running.refused)
            if choice.method != running.drafting.method or not running.refused:  # a fall-back stays the reason
                self._take_up(running, choice)

    def fall_back(self, running: Running, refusal: Refusal) -> None:
        """Go on without the draft model. The first refusal of each kind is logged."""
        if refusal.reason not in self._warned:
            self._warned.add(refusal.reason)
            logger.warning("Request %s drafts without the draft model: %s.", running.request.id, refusal.sentence)
        running.refused.update(name for name, method in METHODS.items() if method.needs_draft_model)
        choice = self._choose(running.request, running.session, running.refused)
        reason = f"{running.drafting.method} was given up: {refusal.sentence}"
        refusal.seat.close()
        self._take_up(running, Choice(choice.method, "fallback", reason))

    def _choose(self, request: Request, session: Session, refused: set[str]) -> Choice:
        method, is_sampled = request.speculation.method, request.sampling.temperature > 0
        if method != AUTO and method not in refused:
            return Choice(method, "requested", "requested")
        fitting = candidates(self._draft_model is not None)
        return choose([name for name in fitting if name not in refused], session.ledger(is_sampled))

    def _take_up(self, running: Running, choice: Choice, start_drafter: StartDrafter | None = None) -> None:
        """Let the chosen method draft from here on; one that did so before goes on where it was."""
        method, request = choice.method, running.request
        stats = running.stats
        stats.method, stats.choice, stats.reason = method, choice.kind, choice.reason
        if method in running.used:
            running.drafting = running.used[method]
            return
        seat = None
        if METHODS[method].needs_draft_model:
            assert self._draft_model is not None, method
            seat = self._draft_model.open(request)
        start = start_drafter or METHODS[method].start
        drafter = start(request, Sources(running.session, seat, self._tree))
        if request.speculation.method == AUTO and method != STAND:
            promise = running.session.ledger(request.sampling.temperature > 0).promise
            drafter = TeachingDrafter(drafter, request, running.session, promise)
        drafter = revise(drafter, request, running.prediction, running.processors)
        running.drafting = running.used[method] = Drafting(
            method=method,
            drafter=drafter,
            default_nodes=METHODS[method].default_nodes,
            seat=seat,
        )
