"""All of drafting, as the engine knows it: trees for a batch of sequences, and which method drafts for whom.

Owns the choice of methods and the draft model or head behind them. Knows nothing of steps or of how methods draft.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Protocol

from decoding.cache.block_pool import BlockTable
from decoding.core.request import Request
from decoding.core.tree import DraftTree
from decoding.costs.acceptance import PLAIN as PLAIN_STEP
from decoding.costs.acceptance import Acceptance, Lately, lately_of
from decoding.costs.price import DraftBudget
from decoding.drafting.draft_model.state import DraftCost, Fallback, GrowthRequest, KeptTokens, Proposer
from decoding.drafting.one_tree.prediction import Prediction
from decoding.drafting.registry import AUTO, METHODS, PLAIN, StartDrafter, available
from decoding.drafting.sequence_drafter import ActiveMethod, Choice, SequenceDrafter
from decoding.drafting.sources import Sources
from decoding.drafting.stand.static_tree import StaticTree
from decoding.errors import RequestRejected
from decoding.sampling.grammar.matcher import GrammarMatcher
from decoding.stores.session import Session

logger = logging.getLogger("gander.engine")


class DraftStep(Protocol):
    """What drafting reads of a sequence's step, and fills in: `chance`, then `tree`, `cost` and `refusal`.

    table: its blocks; end: how many of its tokens the target will know after the step; budget: None where the prompt
    goes on, so that there is nothing to draft yet; tree: the root alone, until one is drafted; refusal: why the
    sequence goes on without the draft model from here on.
    """

    budget: DraftBudget | None
    chance: float | None
    tree: DraftTree | None
    cost: DraftCost
    refusal: str | None

    @property
    def drafter(self) -> SequenceDrafter: ...

    @property
    def table(self) -> BlockTable: ...

    @property
    def end(self) -> int: ...


class Drafting:
    """draft_model: None where there is none; `methods`: those to be had then. has_kernels: whether a method's are
    there; until they are, its requests run plain. tree: the server's own, if any."""

    def __init__(
        self, draft_model: Proposer | None, has_kernels: Callable[[str], bool], tree: StaticTree | None = None
    ) -> None:
        self.methods = available(draft_model is not None)
        self.draft_model = draft_model
        self._has_kernels = has_kernels
        self._tree = tree
        self._warned: set[str] = set()

    def check(self, method: str) -> None:
        """Raise RequestRejected for a method that needs the draft model that is not there."""
        if method in METHODS and method not in self.methods:
            raise RequestRejected(
                f"speculation.method {method!r} needs a draft model or a head, and this server has none",
                param="speculation.method",
                code="no_draft_model",
            )

    def start(
        self,
        request: Request,
        session: Session,
        prediction: Prediction | None,
        matcher: GrammarMatcher | None,
        start_drafter: StartDrafter | None = None,
    ) -> SequenceDrafter:
        """What drafts for a new sequence. start_drafter: makes its drafter instead of the method's."""
        drafter = SequenceDrafter(request, session, prediction, matcher)
        choice = Choice(request.speculation.method)
        if start_drafter is None and not self._has_kernels(choice.method):
            choice = Choice(PLAIN, "waiting", f"{choice.method} is still being compiled")
        self._begin(drafter, choice, start_drafter)
        return drafter

    def probe(self, step: DraftStep) -> None:
        """Ask the stores how likely the likeliest next token of a sequence is; it learns what came meanwhile."""
        drafter = step.drafter
        if drafter.is_waiting and self._has_kernels(drafter.request.speculation.method):
            self._begin(drafter, Choice(drafter.request.speculation.method))
        step.chance = drafter.probe()

    def propose(self, steps: Sequence[DraftStep]) -> None:
        """Draft for all sequences of a step at once, each within its budget."""
        if self.draft_model is not None:
            self._run_draft_model(self.draft_model, steps)
        for step in steps:
            if step.budget is not None and step.budget.max_nodes > 0:
                step.tree = step.drafter.propose(step.budget)
            if step.drafter.active.state is not None:
                step.cost = step.drafter.take_cost()

    def _run_draft_model(self, draft_model: Proposer, steps: Sequence[DraftStep]) -> None:
        asked = [growth for step in steps if (growth := _growth(step)) is not None]
        fallbacks = draft_model.grow_batch(asked) if asked else {}
        for step in steps:
            state = step.drafter.active.state
            if state is not None and (fallback := fallbacks.get(state)) is not None:
                step.refusal = fallback.reason
                self._fall_back(step.drafter, fallback)

    @property
    def reads_features(self) -> bool:
        """Whether each of the target's forwards is read before the next one, see `keep_features`."""
        return self.draft_model is not None and self.draft_model.reads_features

    def keep_features(self, kept: Iterable[KeptTokens]) -> None:
        """The target's forward is through, and these tokens of it stay."""
        if self.draft_model is not None:
            self.draft_model.keep_features(kept)

    def _fall_back(self, drafter: SequenceDrafter, fallback: Fallback) -> None:
        """Go on without the draft model. The first fall-back of each kind is logged."""
        if fallback.reason not in self._warned:
            self._warned.add(fallback.reason)
            logger.warning("Request %s drafts without the draft model: %s.", drafter.request.id, fallback.sentence)
        reason = f"{drafter.active.choice.method} was given up: {fallback.sentence}"
        choice = Choice(AUTO, "fallback", reason)
        if drafter.active.choice.method == AUTO:  # what it knows of the reply, and has counted and kept of it, stays
            drafter.begin(replace(drafter.active, choice=choice, state=None))
        else:
            self._begin(drafter, choice)

    def _begin(self, drafter: SequenceDrafter, choice: Choice, start_drafter: StartDrafter | None = None) -> None:
        """Let a method draft for a sequence from here on; with the draft model if there is one for it, and it can."""
        method, request, state = METHODS[choice.method], drafter.request, None
        runs_model = method.draft_model != "unused" and request.speculation.may_use("draft_model")
        if self.draft_model is not None and runs_model and choice.kind != "fallback":
            state = self.draft_model.open(request)
        sources = Sources(drafter.session, state, self._tree, drafter.prediction, drafter.grammar)
        own = (start_drafter or method.start)(request, sources)
        is_plain = method.most_nodes == 0 or request.speculation.max_nodes == 0
        acceptance = Acceptance(
            Lately(PLAIN_STEP, PLAIN_STEP) if is_plain else lately_of(drafter.learned.lately.tolist())
        )
        drafter.begin(
            ActiveMethod(choice=choice, drafter=own, most_nodes=method.most_nodes, acceptance=acceptance, state=state)
        )


def _growth(step: DraftStep) -> GrowthRequest | None:
    """What the draft model has to do for a sequence, if anything: a tree, or to follow the prompt."""
    state, budget = step.drafter.active.state, step.budget
    if state is None:
        return None
    if budget is None:
        is_asked = step.drafter.reads_ahead
    else:
        is_asked = budget.max_nodes > 0 and (state.grower is None or state.grower.prepare(budget))
    return GrowthRequest(state, step.table, step.end, budget) if is_asked else None
