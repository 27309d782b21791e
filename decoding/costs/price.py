"""What the tokens of a step cost here: in seconds by a curve, in tokens at a rate, and so what a tree is worth.

Pure arithmetic. A forward reads all weights once, so a few tokens take hardly longer than one; beyond them arithmetic
takes the time, and tokens cost alike (the roofline of Williams et al., 2009).

Speculation maximises tokens per second, a ratio, which is done the way ratios are (Dinkelbach 1967): at a rate of r
tokens a second a node of s seconds costs r * s tokens, its price, and it pays if its chance of being accepted is above
the price. The likeliest nodes have what tokens a step has to spare, which cost less than the others.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import mul
from typing import NamedTuple

ANY_DEPTH = 2**31 - 1


@dataclass(frozen=True, slots=True)
class ExpertCosts:
    """What it takes to read the experts that a step's tokens choose. seconds: of one expert in all mixtures.
    num_chosen, num_experts: of how many a token chooses how many. novelty: how far each further token chooses anew: 1
    as if at random, 0 always the same."""

    seconds: float = 0.0
    num_chosen: float = 1.0
    num_experts: float = 1.0
    novelty: float = 1.0

    def num_distinct(self, num_tokens: float) -> float:
        """How many experts so many tokens choose together."""
        num_choices = min(num_tokens, 1.0) + self.novelty * max(0.0, num_tokens - 1)
        return self.num_experts * (1 - self._chance_of_rest**num_choices)

    def novelty_of(self, num_tokens: float, num_distinct: float) -> float | None:
        """The novelty at which so many tokens choose so many experts; None where there is no telling."""
        rest = 1 - num_distinct / self.num_experts
        if num_tokens < 2 or rest < LEAST_REST or not 0 < self._chance_of_rest < 1:
            return None
        return min(max(0.0, math.log(rest) / math.log(self._chance_of_rest) - 1) / (num_tokens - 1), 1.0)

    @property
    def _chance_of_rest(self) -> float:
        """That a token does not choose a certain expert."""
        return 1 - self.num_chosen / self.num_experts

    def seconds_of_tokens(self, num_tokens: float) -> float:
        return self.seconds * self.num_distinct(num_tokens)

    def seconds_of_node(self, num_requests: int) -> float:
        """Of each of a few nodes beside the tokens of so many requests. Later ones find more of their experts read, but
        a price that fell from node to node would have no tree grow until its end is known."""
        further = self.seconds_of_tokens(num_requests + FEW_NODES) - self.seconds_of_tokens(num_requests)
        return further / FEW_NODES


LEAST_REST = 0.05  # of the experts: where fewer are left, their number says little
FEW_NODES = 4


@dataclass(frozen=True, slots=True)
class CostCurve:
    """Seconds of one step: base + few_token for each of the first `few` tokens + token for each other + key * (tokens
    summed over their context lengths) + what the tokens' experts take.

    head: the part of `token` that goes into its logits, which a prompt's tokens can do without; harvest: what a token
    costs more when the stores learn from its logits. tree: what each request that drafts costs the host beside its
    tokens; probe: what asking a request's stores does, which no step's seconds include.
    """

    base: float
    token: float
    key: float
    head: float = 0.0
    harvest: float = 0.0
    few: int = 0
    few_token: float = 0.0
    experts: ExpertCosts | None = None
    tree: float = 0.0
    probe: float = 0.0

    @property
    def tokens_of_base(self) -> float:
        """How many tokens take as long as a step of many tokens takes beside them, which reads all experts."""
        reading = self.experts.seconds * self.experts.num_experts if self.experts is not None else 0.0
        return (self.base + reading) / self.token

    def step_seconds(self, tokens: Sequence[float], contexts: Sequence[int]) -> float:
        """A step in which request i brings tokens[i] tokens at contexts[i] committed ones: on average, where that is no
        whole number."""
        keys = sum(map(mul, tokens, contexts))
        return self.base + self.seconds_of_tokens(sum(tokens)) + self.key * keys + self.tree * num_trees(tokens)

    def seconds_of_tokens(self, num_tokens: float) -> float:
        """What so many tokens take beside what every step does and the keys they read."""
        num_few = min(num_tokens, self.few)
        alone = self.few_token * num_few + self.token * (num_tokens - num_few)
        return alone if self.experts is None else alone + self.experts.seconds_of_tokens(num_tokens)

    def slower(self, factor: float) -> CostCurve:
        """The same, but for `key`, in steps that take `factor` times as long."""
        experts = self.experts and replace(self.experts, seconds=factor * self.experts.seconds)
        base, token, few_token = factor * self.base, factor * self.token, factor * self.few_token
        return replace(self, base=base, token=token, few_token=few_token, experts=experts)

    def plain_seconds(self, emitted: int, contexts: Sequence[int]) -> float:
        """Seconds plain decoding needs for `emitted` tokens at this load: one token per request a step."""
        return emitted / len(contexts) * self.step_seconds([1] * len(contexts), contexts)


def num_trees(tokens: Sequence[float]) -> float:
    """How many of the requests that bring so many tokens draft."""
    return sum(min(1.0, count - 1.0) for count in tokens if count > 1)


@dataclass(slots=True)
class Curves:
    """curve: of a step; draft_curve: of a draft forward, where there is a draft model. Both as of now."""

    curve: CostCurve
    draft_curve: CostCurve | None = None


class NodePrice(NamedTuple):
    """What each of a tree's nodes costs, in tokens: the first `num_spare`, for which a step has rows to spare, and
    others."""

    usual: float = 0.0
    spare: float = 0.0
    num_spare: int = 0

    def plus(self, more: float) -> NodePrice:
        return NodePrice(self.usual + more, self.spare + more, self.num_spare)


FREE = NodePrice()


def price_at(price: NodePrice, place: int) -> float:
    """Of one more node beside `place` likelier ones. Kernels compile it, too."""
    return price.spare if place < price.num_spare else price.usual


def first_price(price: NodePrice) -> float:
    """Of the likeliest node."""
    return price.spare if price.num_spare else price.usual


def num_nodes_for(price: NodePrice, tokens: float) -> float:
    """How many nodes, or parts of one, cost so many tokens."""
    left = tokens - price.spare * price.num_spare
    if left < 0:
        return tokens / price.spare if price.num_spare else 0.0
    return price.num_spare + left / price.usual if price.usual > 0 else math.inf


def price_of(price: NodePrice, num_nodes: float) -> float:
    """Of so many nodes. Kernels compile it, too."""
    num_spare = min(num_nodes, float(price.num_spare))
    return price.spare * num_spare + price.usual * (num_nodes - num_spare)


class DraftBudget(NamedTuple):
    """What a drafter may spend on one tree: nodes, each as likely to be accepted as its price says. Kernels take it as
    it is, so each field is always of one type.

    round_price, row_price: what one more forward of the draft model and each of its rows must promise, in accepted
    tokens. block_len: rows of a forward that names a whole path at once; 1 where each node takes a row and a forward.
    tree_price: what any tree must promise beside all these.
    credit: what the tree's nodes may cost, in tokens, and as much again the draft model. others, fixed: tokens that the
    step's other requests are given, and what it costs without this tree, in tokens; a tree that promises much beside
    them raises the rate, and so the price of its own last nodes. harvests: whether the stores learn from the tree's
    logits. max_depth: edges from the root; what lies deeper could not be emitted. is_trial: whether the draft model is
    to be asked to learn what it is worth; readable: what it may read for that, in tokens.
    """

    max_nodes: int
    price: NodePrice = FREE
    round_price: float = 0.0
    row_price: float = 0.0
    block_len: int = 1
    tree_price: float = 0.0
    others: float = 0.0
    fixed: float = math.inf
    harvests: bool = True
    credit: float = math.inf
    max_depth: int = ANY_DEPTH
    is_trial: bool = False
    readable: float = 0.0

    def within(self, max_depth: int | None) -> DraftBudget:
        """The same, but no deeper than `max_depth`, where it is not None."""
        return self if max_depth is None else self._replace(max_depth=min(self.max_depth, max_depth))

    @property
    def most_rounds(self) -> float:
        """Of a row each, or a block, that there is credit for."""
        return self.credit / (self.round_price + self.row_price * self.block_len) if self.round_price else math.inf

    @property
    def with_block_run(self) -> DraftBudget:
        """The same for a tree that grows of a block which was run: what it says is to be had for nothing now."""
        spent = self.round_price + self.row_price * self.block_len
        return self._replace(round_price=0.0, row_price=0.0, fixed=self.fixed + spent)


NOTHING = DraftBudget(0)
LONGEST_CHAIN = 16  # nodes that are reckoned with


def chain_gain(chance: float, hit_rate: float, price: NodePrice) -> float:
    """What a chain promises beyond its price, in tokens, as far as its nodes are worth theirs. chance: of its first
    node; hit_rate: the chance of each further node once the one before it is accepted."""
    gain = 0.0
    for place in range(LONGEST_CHAIN):
        cost = price_at(price, place)
        if chance <= cost:
            break
        gain += chance - cost
        chance *= hit_rate
    return gain


def model_gain(hit_rate: float, price: NodePrice, round_price: float, row_price: float, block_len: int) -> float:
    """What the draft model promises beyond its price and that of the nodes it names, in tokens; none below 0.

    Nodes take a round each, or all of them the one of a block. The other arguments are as of a `DraftBudget`.
    """
    if block_len == 1:
        return chain_gain(hit_rate, hit_rate, price.plus(round_price + row_price))
    return max(0.0, chain_gain(hit_rate, hit_rate, price) - round_price - row_price * block_len)
