"""How much each sequence may draft at a step: the present rate of tokens, and so the price of a node.

A question changes nothing here: `rate`, `budgets` and what follows from them are functions of the demands and of the
costs. Only `note_step` learns. Trees shrink as the batch grows and vanish where drafting does not pay. What a price
means is `price`'s.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from decoding.costs.acceptance import PLAIN, Acceptance, Lately
from decoding.costs.price import (
    NOTHING,
    CostCurve,
    Curves,
    DraftBudget,
    NodePrice,
    chain_gain,
    first_price,
    model_gain,
    num_nodes_for,
    num_trees,
    price_of,
)
from decoding.costs.trials import HOPE, Trials


class Demand(NamedTuple):
    """What one decoding sequence asks of a step.

    max_nodes: the budget it asks for, None where its credit and the price of nodes are its budget; most_nodes: the most
    of them then, None for any; context: its tokens so far; tokens_left: the most it may yet emit; harvests: whether the
    stores learn from its logits, None where that is weighed against its price; hit_rate: how often the token after one
    that the draft model ran is among those that the draft model thought likeliest; block_len: as of a `DraftBudget`;
    trial_credit: what a trial of the draft model may cost, in tokens; is_sampled: whether at a temperature.
    """

    max_nodes: int | None
    context: int
    tokens_left: int
    acceptance: Acceptance
    runs_draft_model: bool = False
    harvests: bool | None = None
    hit_rate: float = 1.0
    credit: float = math.inf
    most_nodes: int | None = None
    block_len: int = 1
    trial_credit: float = 0.0
    is_sampled: bool = False


@dataclass(frozen=True, slots=True)
class Rate:
    """Of the requests that decode in one step together. plain: tokens a second of plain decoding; emitted, tokens: what
    each emits and runs in such a step."""

    tokens_a_second: float
    plain: float
    emitted: Sequence[float]
    tokens: Sequence[float]


class Prices(NamedTuple):
    """In tokens: of a tree's nodes, of a round of the draft model and of each token that it runs, and of a tree beside
    these. block_len: as of a `DraftBudget`."""

    node: NodePrice
    round: float = 0.0
    row: float = 0.0
    block_len: int = 1
    tree: float = 0.0

    @property
    def first_token(self) -> float:
        """Of the first token that the draft model names, or its first block, and of a tree with the node for it."""
        return self.round + self.row * self.block_len + first_price(self.node) + self.tree

    def pay_for(self, chance: float, hit_rate: float) -> bool:
        """Whether some tree is worth its price: one of tokens so likely, or one of the draft model's."""
        return chain_gain(chance, chance, self.node) > self.tree or self.pay_for_model(hit_rate)

    def pay_for_model(self, hit_rate: float) -> bool:
        """Whether running the draft model is worth its price, if there is one."""
        return self.round > 0 and model_gain(hit_rate, self.node, self.round, self.row, self.block_len) > self.tree


def present_rate(curve: CostCurve, acceptances: Sequence[Acceptance], contexts: Sequence[int]) -> Rate:
    """At what the latest steps brought, or would have without the draft model, or at that of plain decoding, which is
    always to be had."""
    ways = [([PLAIN] * len(acceptances), 0.0), ([each.alone for each in acceptances], 0.0)]
    ways.append(([each.own for each in acceptances], sum(each.draft_seconds for each in acceptances)))
    rates: list[Rate] = []
    for brought, draft_seconds in ways:
        emitted, tokens = [each.emitted for each in brought], [each.tokens for each in brought]
        tokens_a_second = sum(emitted) / (curve.step_seconds(tokens, contexts) + draft_seconds)
        rates.append(Rate(tokens_a_second, rates[0].plain if rates else tokens_a_second, emitted, tokens))
    return max(rates, key=lambda rate: rate.tokens_a_second)


def node_price(
    curve: CostCurve, rate: float, context: int, num_requests: int = 1, seconds_beside: float = 0.0
) -> NodePrice:
    """What nodes cost one of so many requests, at `context` committed tokens, in tokens: the tokens that a step has to
    spare beside their own are shared. seconds_beside: of each node, beside the forward."""
    num_spare = max(0, curve.few - num_requests) // num_requests
    more = curve.key * context + seconds_beside
    if curve.experts is not None:
        more += curve.experts.seconds_of_node(num_requests)
    return NodePrice(rate * (curve.token + more), rate * (curve.few_token + more), num_spare)


# Where there is no draft model stores that learn from the prompt make replies shorter in steps, of which its last 128
# tokens bring three quarters.
HARVEST_TOKENS = 2  # that a reply of some hundred is given sooner by so, for what the logits take
HARVEST_WORTH = 0.015  # tokens: where learning from a token's logits costs more, copies are enough
DEAR_NODE = 0.4  # tokens: at such a price only likely nodes are drafted, and logits teach what else might come
MOST_HARVEST = 1 << 20
READING = Acceptance(Lately(PLAIN, PLAIN))  # of a request whose prompt is being read, once it decodes
TINY = 1e-9  # seconds
MOST_SURPRISE = 2.0  # of one step: another process may have had the machine
CHAIN_SMOOTHING = 0.3
LEAST_FACTOR = 0.1


class Pricing:
    """most_nodes: the largest budget anybody gets. costs: that budgets follow, as they change. trials: of the draft
    model, that go on or have been."""

    def __init__(self, most_nodes: int, costs: Curves, trials: Trials | None = None) -> None:
        self._most_nodes = most_nodes
        self.trials = trials or Trials()
        self._step_factor = self._chain_factor = 1.0  # of what the curve says
        self._costs = costs

    @property
    def base_tokens(self) -> float:
        """How many tokens take as long as a step takes beside its tokens."""
        return self._costs.curve.tokens_of_base

    def rate(self, demands: Sequence[Demand], reading: Sequence[int] = ()) -> Rate:
        """What these sequences are given a second. reading: how many tokens each of the other requests has that run:
        their prompts are being read, and what seconds are worth is what they are once those decode, too."""
        acceptances = [*(demand.acceptance for demand in demands), *(READING for _ in reading)]
        return present_rate(self._costs.curve, acceptances, [*(demand.context for demand in demands), *reading])

    def harvests(self, rate: Rate) -> bool:
        """Whether a tree's logits are worth being learned from at this rate: less, the dearer nodes are."""
        curve, tokens_a_second = self._costs.curve, rate.tokens_a_second
        return tokens_a_second * curve.harvest <= HARVEST_WORTH * (1 - tokens_a_second * curve.token / DEAR_NODE)

    def harvest_len(self, rate: Rate) -> int:
        """How many of a prompt's last tokens are worth their logits to drafting."""
        return int(min(HARVEST_TOKENS / (rate.tokens_a_second * max(self._costs.curve.head, TINY)), MOST_HARVEST))

    def seconds_of_chain(self, num_tokens: int, context: int, runs_draft_model: bool) -> float:
        """What a chain of so many tokens after `context` others adds to a step."""
        curves = [self._costs.curve]
        if runs_draft_model and self._costs.draft_curve is not None:
            curves.append(self._costs.draft_curve)
        num_keys = num_tokens * (context + num_tokens / 2)
        seconds = sum((curve.token - curve.head) * num_tokens + curve.key * num_keys for curve in curves)
        seconds += sum(curve.experts.seconds_of_tokens(num_tokens) for curve in curves if curve.experts is not None)
        return self._chain_factor * seconds

    def note_step(self, seconds: float, tokens: Sequence[int], contexts: Sequence[int], chains: float) -> None:
        """A step of trees of so many tokens at these contexts, and of chains that were expected to add `chains`, took
        `seconds`.

        Without chains it tells how busy the machine is; with them, what chains add beside that: their tokens share what
        they read, so the curve, which is measured on few tokens, says too much of them.
        """
        expected = self._costs.curve.step_seconds(tokens, contexts)
        if chains == 0:
            self._step_factor = _follow(self._step_factor, seconds / expected / self._step_factor)
        else:
            self._chain_factor = _follow(self._chain_factor, (seconds - self._step_factor * expected) / chains)

    def note_emitted(self, num_tokens: int, reading: float) -> None:
        """A sequence was given so many tokens. reading: seconds for which the draft model read to be tried."""
        self.trials.note_step(num_tokens, reading / self._costs.curve.step_seconds([1], [0]))

    def note_trial(self, budget: DraftBudget, is_sampled: bool) -> None:
        """A step asked the draft model within a trial's budget."""
        prices = Prices(budget.price, budget.round_price, budget.row_price, budget.block_len, budget.tree_price)
        self.trials.note_asked(is_sampled, prices.first_token)

    def budgets(self, rate: Rate, demands: Sequence[Demand], chances: Sequence[float | None]) -> list[DraftBudget]:
        """A budget for each demand, wherever the room may be. chances: how likely the likeliest next token of each is;
        None where nobody asked the stores, so that there is nothing to draft."""
        num_sharing = self._num_sharing(rate, demands, chances)
        own = enumerate(zip(demands, chances, strict=True))
        return [self._budget(rate, place, demand, chance, num_sharing) for place, (demand, chance) in own]

    def _num_sharing(self, rate: Rate, demands: Sequence[Demand], chances: Sequence[float | None]) -> int:
        """How many sequences share the draft model's forwards: those to which it is still worth it when they do."""
        pairs = zip(demands, chances, strict=True)
        sharing = [demand for demand, chance in pairs if chance is not None and self._runs_model(demand)]
        while len(sharing) > 1:
            worth = [each for each in sharing if self._may_ask(each, self._prices(rate, each, len(sharing)))]
            if len(worth) == len(sharing):
                break
            sharing = worth
        return len(sharing)

    def _may_ask(self, demand: Demand, prices: Prices) -> bool:
        """Whether running the draft model is worth its price to a sequence, or a trial of it is due."""
        return prices.pay_for_model(demand.hit_rate) or self._is_trial(demand, prices)

    def _is_trial(self, demand: Demand, prices: Prices) -> bool:
        """Whether a sequence may ask the draft model to learn what it is worth, where its drafter does learn that."""
        if demand.most_nodes is not None:
            return False
        is_affordable = prices.round > 0 and demand.trial_credit >= prices.first_token
        return (
            is_affordable and prices.pay_for_model(HOPE) and self.trials.is_open(demand.is_sampled, prices.first_token)
        )

    def _runs_model(self, demand: Demand) -> bool:
        return demand.runs_draft_model and self._costs.draft_curve is not None

    def _prices(self, rate: Rate, demand: Demand, num_sharing: int) -> Prices:
        """num_sharing: sequences that share the draft model's rounds."""
        curve, draft, tokens_a_second = self._costs.curve, self._costs.draft_curve, rate.tokens_a_second
        beside = curve.harvest if self._harvests(rate, demand) else 0.0
        node = node_price(curve, tokens_a_second, demand.context, len(rate.emitted), beside)
        tree = tokens_a_second * curve.tree
        if draft is None or not demand.runs_draft_model:
            return Prices(node, tree=tree)
        num_sharing = max(1, num_sharing)
        row = first_price(node_price(draft, tokens_a_second, demand.context, num_sharing))
        return Prices(node, tokens_a_second * draft.base / num_sharing, row, demand.block_len, tree)

    def _harvests(self, rate: Rate, demand: Demand) -> bool:
        return self.harvests(rate) if demand.harvests is None else demand.harvests

    def _budget(self, rate: Rate, place: int, demand: Demand, chance: float | None, num_sharing: int) -> DraftBudget:
        """That of the demand in this place. num_sharing: sequences that share the draft model's forwards."""
        if demand.tokens_left <= 1 or chance is None:
            return NOTHING
        max_depth = demand.tokens_left - 1  # a path of so many leaves room for the bonus token
        if demand.max_nodes is not None:
            return DraftBudget(min(demand.max_nodes, self._most_nodes), max_depth=max_depth)
        prices = self._prices(rate, demand, num_sharing)
        credit = max(0.0, demand.credit) * rate.tokens_a_second / rate.plain / (2 if self._runs_model(demand) else 1)
        most_nodes = self._most_nodes if demand.most_nodes is None else min(demand.most_nodes, self._most_nodes)
        most_nodes = int(min(most_nodes, num_nodes_for(prices.node, max(0.0, credit - prices.tree))))
        is_trial = self._is_trial(demand, prices)
        if most_nodes == 0 or not (is_trial or prices.pay_for(chance, demand.hit_rate)):
            return NOTHING
        whole = sum(rate.emitted)
        others, own = whole - rate.emitted[place], rate.tokens[place]
        fixed = whole - price_of(prices.node, own - 1) - prices.tree * num_trees([own])
        budget = DraftBudget(most_nodes, *prices, others, fixed, self._harvests(rate, demand), credit, max_depth)
        return budget._replace(is_trial=True, readable=self._num_readable) if is_trial else budget

    @property
    def _num_readable(self) -> float:
        """Tokens that the draft model may read for a trial."""
        curve, draft = self._costs.curve, self._costs.draft_curve
        assert draft is not None, "a trial of nothing"
        return self.trials.readable * curve.step_seconds([1], [0]) / (draft.token - draft.head)


def fitted(budgets: Sequence[DraftBudget], room: int) -> list[DraftBudget]:
    """The same, of at most `room` nodes together: trees shrink alike before anybody waits."""
    wanted = sum(budget.max_nodes for budget in budgets)
    if wanted <= room:
        return list(budgets)
    return [each._replace(max_nodes=each.max_nodes * room // wanted) for each in budgets]


def _follow(factor: float, ratio: float) -> float:
    """A factor on its way to `ratio` times itself."""
    ratio = min(max(ratio, 1 / MOST_SURPRISE), MOST_SURPRISE)
    return min(max(factor * ratio**CHAIN_SMOOTHING, LEAST_FACTOR), 1 / LEAST_FACTOR)
