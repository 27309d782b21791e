"""What drafts for one sequence: the method at work, and what the request knows of its reply.

Owns that state; `drafting` decides which method it is. Knows nothing of steps.
"""

from __future__ import annotations

from dataclasses import dataclass

from decoding.core.request import Request
from decoding.core.top_tokens import TopTokens
from decoding.core.tree import DraftTree, Verdict
from decoding.costs.acceptance import Acceptance, Brought, numbers_of
from decoding.costs.credit import PROBE_SHARE, TRIAL_SHARE, credit
from decoding.costs.price import DraftBudget
from decoding.costs.pricing import Demand
from decoding.drafting.draft_model.state import NO_COST, DraftCost, DraftModelState
from decoding.drafting.drafter import Drafter
from decoding.drafting.grammar import TreeGrammar
from decoding.drafting.one_tree.prediction import Prediction
from decoding.sampling.grammar.matcher import GrammarMatcher
from decoding.stores.acceptance_model import AcceptanceModel
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
    """A method at work for one sequence. most_nodes: as the registry has it; state: its part of the draft model, if the
    method drafts with it."""

    choice: Choice
    drafter: Drafter
    most_nodes: int | None
    acceptance: Acceptance
    state: DraftModelState | None = None


class SequenceDrafter:
    """request: whose; session: what drafting remembers of its caller; prediction, matcher: None where the request has
    none. `active`: begun before anything is proposed."""

    active: ActiveMethod

    def __init__(
        self, request: Request, session: Session, prediction: Prediction | None, matcher: GrammarMatcher | None
    ) -> None:
        self.request = request
        self.session = session
        self.prediction = prediction
        self.grammar = TreeGrammar(request, matcher) if matcher else None
        self.nodes_wanted = (
            0  # that it could bring to a step: twice those that its trees lately had, since they may grow
        )
        self._max_nodes: int | None = 0  # the budget of each step; None where it is what the reply's credit allows
        self.lost = 0.0  # tokens of plain decoding, that drafting took beyond what it brought
        self.lost_in_probes = 0.0  # of them, for asking the stores
        self.lost_in_trials = 0.0  # of them, in steps that asked the draft model to learn what it is worth
        if prediction is not None:
            prediction.follow(request.output)

    @property
    def learned(self) -> AcceptanceModel:
        """By its session, of requests of this kind."""
        own, _ = self.session.acceptance_models(self.is_sampled)
        return own

    @property
    def is_sampled(self) -> bool:
        return self.request.sampling.temperature > 0

    @property
    def num_top(self) -> int:
        """How many of the target's likeliest tokens are wanted of each row; 0 for none."""
        return self.active.drafter.num_top

    @property
    def is_waiting(self) -> bool:
        """Whether it is plain only until the method that was asked for is compiled."""
        return self.active.choice.kind == "waiting"

    def rests(self, is_due: bool) -> bool:
        """Whether nothing is drafted at the next step, whatever token comes before it. is_due: whether those are to be
        asked by now whom many probes told nothing."""
        if self.is_waiting or self._max_nodes == 0:
            return not self.is_waiting
        drafter = self.active.drafter
        is_asked = drafter.is_awake and (is_due or not drafter.is_patient) and self._may_probe
        return self._max_nodes is None and not is_asked

    def demand(self) -> Demand:
        """What it asks of the next step."""
        active, drafter = self.active, self.active.drafter
        return Demand(
            max_nodes=self._max_nodes,
            most_nodes=active.most_nodes,
            context=self.request.num_tokens,
            tokens_left=self._tokens_left,
            acceptance=active.acceptance,
            runs_draft_model=active.state is not None,
            harvests=None if drafter.weighs_harvest else drafter.num_top > 0,
            hit_rate=drafter.hit_rate,
            credit=self._credit,
            block_len=1 if active.state is None else active.state.block_len,
            trial_credit=credit(self.request.num_output, self.lost_in_trials, TRIAL_SHARE),
            is_sampled=self.is_sampled,
        )

    def probe(self) -> float | None:
        """How likely the likeliest next token is; None where nothing is drafted at this step."""
        drafter, max_nodes = self.active.drafter, self._max_nodes
        if max_nodes == 0 or self._tokens_left <= 1:
            return None
        if max_nodes is not None:
            return 1.0
        return drafter.probe() if drafter.is_awake and self._may_probe else None

    @property
    def _may_probe(self) -> bool:
        num_output = self.request.num_output
        has_gained = self.lost < 0
        return has_gained or (self._credit > 0 and credit(num_output, self.lost_in_probes, PROBE_SHARE) > 0)

    @property
    def _credit(self) -> float:
        return credit(self.request.num_output, self.lost)

    @property
    def is_weighed(self) -> bool:
        """Whether what it drafts is weighed against its price: then the stores are asked before."""
        return self._max_nodes is None

    def begin(self, active: ActiveMethod) -> None:
        """Another method drafts from here on."""
        self.active = active
        self._max_nodes = 0 if active.most_nodes == 0 else self.request.speculation.max_nodes
        self._note_wanted()

    def _note_wanted(self) -> None:
        self.nodes_wanted = int(2 * (self.active.acceptance.own.tokens - 1)) if self._tokens_left > 1 else 0

    @property
    def _tokens_left(self) -> int:
        return self.request.max_total - self.request.num_tokens

    def learns_prompt(self, harvests: bool) -> bool:
        """Whether the logits of the prompt's last tokens are to be learned from, by it or by those who find the prompt.
        A method that lives by them always learns; others where that is worth it (`harvests`) and no draft model knows
        more than they tell."""
        drafter = self.active.drafter
        lives_by_them = drafter.num_top > 0 and not drafter.weighs_harvest
        return lives_by_them or (harvests and not self.reads_ahead)

    @property
    def reads_ahead(self) -> bool:
        """Whether the draft model is to read the prompt while the target does: most trees of the session ask it, or the
        method was asked for by name."""
        if self.active.state is None:
            return False
        return not self.active.drafter.weighs_harvest or bool(self.learned.asked_rate[0] > 0.5)

    def learns_from(self, tree: DraftTree) -> bool:
        """Whether a verified tree is worth observing: a plain step's is not, where learning is weighed."""
        return tree.num_drafted > 0 or not self.active.drafter.weighs_harvest

    def propose(self, budget: DraftBudget) -> DraftTree:
        """The tree to verify, of at least one node besides the root where that is worth its price."""
        proposed = self.active.drafter.propose(budget)
        return proposed if self.grammar is None else self.grammar.revise(proposed, budget)

    def observe_prefill(self, start: int, top: TopTokens | None) -> None:
        """Tokens from `start` on were run: row i of `top` follows position `start + i`."""
        self.active.drafter.observe_prefill(start, top)

    def observe(self, tree: DraftTree, verdict: Verdict, top: TopTokens | None) -> None:
        """The drafted tree is verified and the request extended; top: a row for each node."""
        if self.grammar is None:
            self.active.drafter.observe(tree, verdict, top)
        else:
            self.grammar.show(self.active.drafter, verdict, top)

    def finish(self) -> dict[str, int]:
        """The reply has ended: by source, how many of its tokens were predicted, drafted or not."""
        if self._max_nodes is None and self.active.most_nodes is None:
            self.learned.lately[:] = numbers_of(self.active.acceptance.lately)
        return self.active.drafter.finish()

    def take_cost(self) -> DraftCost:
        """What the draft model took for it since this was last asked."""
        return self.active.state.take_cost() if self.active.state else NO_COST

    def note_step(self, tree: DraftTree, verdict: Verdict, cost: DraftCost) -> None:
        """A tree was verified, and the request extended."""
        if self._max_nodes != 0:
            draft_seconds = cost.seconds if cost is NO_COST or cost.is_usual else None
            own, alone = Brought(len(verdict.tokens), len(tree)), self.active.drafter.alone
            self.active.acceptance.update(own, alone if cost.num_forwards else None, draft_seconds)
            self._note_wanted()
        if self.prediction is not None:
            self.prediction.follow(self.request.output)

    def note_probe(self, price: float) -> None:
        """The stores were asked, for so many tokens, which are a part of the step's loss."""
        self.lost_in_probes += price

    def note_loss(self, lost: float, budget: DraftBudget, cost: DraftCost) -> float:
        """A step took so many tokens of plain decoding more than it brought. Seconds for which the draft model read to
        be tried: none where the method was asked for by name, and reads in any case."""
        self.lost += lost
        if not budget.is_trial or cost.num_forwards == 0:
            return 0.0
        self.lost_in_trials += lost
        return 0.0 if cost.is_usual or not self.active.drafter.weighs_harvest else cost.seconds

    def forget_rows(self) -> None:
        """The sequence gives its blocks back, and the draft model's rows with them."""
        if self.active.state is not None:
            self.active.state.forget_rows()
