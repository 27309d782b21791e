"""What drafts for one sequence: the method at work, those it may go back to, and what the request knows of its reply.

Owns that state; `drafting` decides which method it is. Knows nothing of steps.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from decoding.core.request import Request
from decoding.core.top_tokens import TopTokens
from decoding.core.tree import DraftTree, Verdict
from decoding.costs.price import Demand, DraftBudget, Pace
from decoding.drafting.auto import Choice
from decoding.drafting.draft_model.state import DraftCost, DraftModelState
from decoding.drafting.drafter import Drafter
from decoding.drafting.harvest import Teacher
from decoding.drafting.revision.reviser import Reviser
from decoding.stores.session import Session


@dataclass(slots=True, eq=False, kw_only=True)
class ActiveMethod:
    """One method at work for one sequence. state: its part of the draft model, if the method drafts with it;
    teacher: where the session is to learn whatever the method does."""

    name: str
    drafter: Drafter
    default_nodes: int | None
    state: DraftModelState | None = None
    teacher: Teacher | None = None
    pace: Pace = field(default_factory=Pace)


class SequenceDrafter:
    """request: whose; session: what drafting remembers of its caller; reviser: None where the request has neither a
    prediction nor a grammar. `take_up` a method before anything is proposed."""

    active: ActiveMethod
    choice: Choice

    def __init__(self, request: Request, session: Session, reviser: Reviser | None) -> None:
        self.request = request
        self.session = session
        self.ledger = session.ledger(request.sampling.temperature > 0)  # of methods in requests of this kind
        self.refused: set[str] = set()  # methods that can do nothing more for it
        self.num_steps = 0
        self._reviser = reviser
        self._used: dict[str, ActiveMethod] = {}
        self._last_emitted = 0

    @property
    def num_top(self) -> int:
        """How many of the target's likeliest tokens are wanted of each row; 0 for none."""
        active = self.active
        return active.teacher.num_top if active.teacher else active.drafter.num_top

    @property
    def demand(self) -> Demand:
        """What it asks of the next step."""
        request, active = self.request, self.active
        asked = request.speculation.max_nodes
        return Demand(
            max_nodes=active.default_nodes if asked is None else asked,
            context=request.num_tokens,
            tokens_left=request.max_total - request.num_tokens,
            pace=active.pace,
            runs_draft_model=active.state is not None,
        )

    def can_go_back_to(self, method: str) -> bool:
        """Whether the method drafted before, so that it can go on where it was."""
        return method in self._used

    def take_up(self, method: ActiveMethod, choice: Choice) -> None:
        """Let a method draft from here on."""
        self._used[method.name] = method
        self.go_back_to(choice)

    def go_back_to(self, choice: Choice) -> None:
        """Let a method that drafted before draft again."""
        self.active, self.choice = self._used[choice.method], choice

    def refuse(self, methods: set[str]) -> None:
        """These methods can do nothing more for it."""
        self.refused |= methods

    def begin(self, budget: DraftBudget) -> DraftBudget:
        """A tree is about to be drafted; what is left of the budget for the method."""
        return budget if self._reviser is None else self._reviser.begin(budget)

    def finish(self, proposed: DraftTree) -> DraftTree:
        """The tree to verify, of the one that the method proposed."""
        if self.active.teacher is not None:
            self.active.teacher.begin()
        return proposed if self._reviser is None else self._reviser.revise(proposed)

    def observe_prefill(self, start: int, top: TopTokens | None) -> None:
        """Tokens from `start` on were run: row i of `top` follows position `start + i`."""
        self.active.drafter.observe_prefill(start, top)
        if self.active.teacher is not None:
            self.active.teacher.observe_prefill(start, top)

    def observe(self, tree: DraftTree, verdict: Verdict, top: TopTokens | None) -> None:
        """The drafted tree is verified and the request extended; top: a row for each node."""
        if self._reviser is None:
            self._learn(tree, verdict, top)
            return
        outcome = self._reviser.outcome(verdict, top)
        self._learn(outcome.tree, outcome.verdict, outcome.top)
        if outcome.rest is not None:
            self.observe_prefill(outcome.start, outcome.rest)

    def _learn(self, tree: DraftTree, verdict: Verdict, top: TopTokens | None) -> None:
        self.active.drafter.observe(tree, verdict, top)
        if self.active.teacher is not None:
            self.active.teacher.observe(tree, verdict, top)

    def take_cost(self) -> DraftCost:
        """What the draft model took for it since this was last asked."""
        return self.active.state.take_cost() if self.active.state else DraftCost()

    def note_step(self, tree: DraftTree, verdict: Verdict, num_emitted: int, cost: DraftCost) -> None:
        """A tree was verified, of whose tokens `num_emitted` were given out."""
        self.num_steps += 1
        self._last_emitted = num_emitted
        self.active.pace.update(tree.num_drafted, len(verdict.tokens), cost.seconds if cost.is_usual else 0.0)

    def note_earnings(self, seconds: float) -> None:
        """Tell the session what the method earned in the last step. seconds: this sequence's part of its time."""
        self.ledger.note(self.active.name, self._last_emitted, seconds)

    def forget_rows(self) -> None:
        """The sequence gives its blocks back, and the draft model's rows with them."""
        for method in self._used.values():
            if method.state is not None:
                method.state.forget_rows()
