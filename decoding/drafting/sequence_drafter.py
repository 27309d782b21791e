"""What drafts for one sequence: the method at work, and what the request knows of its reply.

Owns that state; `drafting` decides which method it is. Knows nothing of steps.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from decoding.core.request import Request
from decoding.core.top_tokens import TopTokens
from decoding.core.tree import DraftTree, Verdict, root_only
from decoding.costs.price import DraftBudget, Stakes
from decoding.costs.pricing import Demand, Pace, sure
from decoding.drafting.draft_model.state import DraftCost, DraftModelState
from decoding.drafting.drafter import Drafter
from decoding.drafting.one_tree.foresight import Foresight
from decoding.drafting.one_tree.one_tree import OneTree
from decoding.drafting.one_tree.prediction import Prediction
from decoding.drafting.revision import Reviser
from decoding.sampling.grammar.matcher import GrammarMatcher
from decoding.stores.judge import ASKED, FOUND
from decoding.stores.session import Session


@dataclass(frozen=True, slots=True)
class Choice:
    """A method and why. kind: "requested", "fallback" or, while what was asked for is being compiled, "waiting";
    reason: a sentence."""

    method: str
    kind: str = "requested"
    reason: str = "requested"


@dataclass(slots=True, eq=False, kw_only=True)
class ActiveMethod:
    """A method at work for one sequence. state: its part of the draft model, if the method drafts with it."""

    choice: Choice
    drafter: Drafter
    default_nodes: int | None
    state: DraftModelState | None = None
    pace: Pace = field(default_factory=Pace)


class SequenceDrafter:
    """request: whose; session: what drafting remembers of its caller; prediction, matcher: None where the request has
    none. `active`: set before anything is proposed."""

    active: ActiveMethod

    def __init__(
        self, request: Request, session: Session, prediction: Prediction | None, matcher: GrammarMatcher | None
    ) -> None:
        self.request = request
        self.session = session
        self.foresight = Foresight(request, prediction, matcher) if prediction or matcher else None
        self._reviser = Reviser(request, matcher) if matcher else None

    @property
    def num_top(self) -> int:
        """How many of the target's likeliest tokens are wanted of each row; 0 for none."""
        return self.active.drafter.num_top

    @property
    def is_waiting(self) -> bool:
        """Whether it is plain only until the method that was asked for is compiled."""
        return self.active.choice.kind == "waiting"

    @property
    def demand(self) -> Demand:
        """What it asks of the next step."""
        request, active = self.request, self.active
        asked = request.speculation.max_nodes
        return Demand(
            max_nodes=0 if self.is_waiting else active.default_nodes if asked is None else asked,
            context=request.num_tokens,
            tokens_left=self._tokens_left,
            pace=active.pace,
            runs_draft_model=active.state is not None,
            harvests=None if self.weighs_rows else self.num_top > 0,
            hope=active.drafter.hope if isinstance(active.drafter, OneTree) else 1.0,
            is_awake=self._is_awake,
            look=self._look,
        )

    @property
    def nodes_wanted(self) -> int:
        """That it could bring to a step: twice those that its trees lately had, since they may grow."""
        return int(2 * (self.active.pace.rows - 1)) if self._tokens_left > 1 else 0

    @property
    def _tokens_left(self) -> int:
        return self.request.max_total - self.request.num_tokens

    def _is_awake(self, look_price: float) -> bool:
        """Whether to look for a tree. Where that cannot be said, drafting will fail likewise, and end this request."""
        drafter = self.active.drafter
        try:
            return not isinstance(drafter, OneTree) or drafter.is_awake(look_price)
        except Exception:
            return True

    def _look(self, stakes: Stakes) -> float:
        """What a look for a tree brings, or fails likewise."""
        drafter = self.active.drafter
        try:
            return drafter.look(stakes) if isinstance(drafter, OneTree) else sure(stakes)
        except Exception:
            return sure(stakes)

    @property
    def has_looked(self) -> bool:
        """Whether it has looked for a tree at the last token."""
        return isinstance(self.active.drafter, OneTree) and self.active.drafter.has_looked

    def harvest_share(self, harvests: bool) -> float:
        """How much of what rows of the prompt may bring they bring here: all to a method that lives by them; else, if
        they are worth it at all, as much as of the session's looks find a tree. A draft model knows more than they."""
        if self.num_top > 0 and not self.weighs_rows:
            return 1.0
        return float(self._looks[FOUND]) if harvests and self.active.state is None else 0.0

    @property
    def weighs_rows(self) -> bool:
        """Whether it learns from the target's rows only where that is worth its price."""
        return isinstance(self.active.drafter, OneTree) and self.active.drafter.weighs_rows

    @property
    def reads_ahead(self) -> bool:
        """Whether the draft model is to read the prompt while the target does: most looks of the session ask it, or the
        method was asked for by name."""
        return self.active.state is not None and (not self.weighs_rows or bool(self._looks[ASKED] > 0.5))

    @property
    def _looks(self) -> NDArray[np.float32]:
        own, _ = self.session.judges(self.request.sampling.temperature > 0)
        return own.looks

    @property
    def foretold(self) -> dict[str, int]:
        """By source, how many of the reply's tokens it had thought likeliest; of one tree's sources alone."""
        drafter = self.active.drafter
        return drafter.foretold if isinstance(drafter, OneTree) else {}

    def close(self) -> None:
        """The request is through."""
        if isinstance(self.active.drafter, OneTree):
            self.active.drafter.close()

    def propose(self, budget: DraftBudget) -> DraftTree:
        """The tree to verify; the root alone where the budget is no nodes."""
        if budget.max_nodes == 0:
            return root_only(int(self.request.tokens[-1]))
        proposed = self.active.drafter.propose(budget)
        return proposed if self._reviser is None else self._reviser.revise(proposed, budget.max_nodes)

    def observe_prefill(self, start: int, top: TopTokens | None) -> None:
        """Tokens from `start` on were run: row i of `top` follows position `start + i`."""
        self.active.drafter.observe_prefill(start, top)

    def observe(self, tree: DraftTree, verdict: Verdict, top: TopTokens | None) -> None:
        """The drafted tree is verified and the request extended; top: a row for each node."""
        if self._reviser is None:
            self.active.drafter.observe(tree, verdict, top)
        else:
            self._reviser.show(self.active.drafter, verdict, top)

    def take_cost(self) -> DraftCost:
        """What the draft model took for it since this was last asked."""
        return self.active.state.take_cost() if self.active.state else DraftCost()

    def note_step(self, tree: DraftTree, verdict: Verdict, cost: DraftCost) -> None:
        """A tree was verified."""
        self.active.pace.update(tree.num_drafted, len(verdict.tokens), cost.seconds if cost.is_usual else None)

    def forget_rows(self) -> None:
        """The sequence gives its blocks back, and the draft model's rows with them."""
        if self.active.state is not None:
            self.active.state.forget_rows()
