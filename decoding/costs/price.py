"""What a drafted node costs, and so what a tree is worth, in tokens.

Pure arithmetic. Speculation maximises tokens per second, a ratio, which is done the way ratios are (Dinkelbach 1967):
at a rate of r tokens a second a row of s seconds costs r * s tokens, its price, and a node pays if its chance of being
accepted is above the price. The likeliest nodes have what rows a step has to spare, which cost less than the others.
"""

from __future__ import annotations

import math
from typing import NamedTuple


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


def price_of(price: NodePrice, num_nodes: float) -> float:
    """Of so many nodes. Kernels compile it, too."""
    num_spare = min(num_nodes, float(price.num_spare))
    return price.spare * num_spare + price.usual * (num_nodes - num_spare)


class DraftBudget(NamedTuple):
    """What a drafter may spend on one tree: nodes, each as likely to be accepted as its price says. Kernels take it as
    it is, so each field is always of one type.

    round_price, row_price: what one more forward of the draft model and each of its rows must promise, in accepted
    tokens; least_gain: what the tree must promise beyond its nodes' price. others, fixed: tokens that the step's other
    requests are given, and what it costs without this tree, in tokens; a tree that promises much beside them raises the
    rate, and so the price of its own last nodes. harvests: whether rows are worth being learned from.
    """

    max_nodes: int
    price: NodePrice = FREE
    round_price: float = 0.0
    row_price: float = 0.0
    least_gain: float = 0.0
    others: float = 0.0
    fixed: float = math.inf
    harvests: bool = True

    @property
    def model_price(self) -> NodePrice:
        """Of nodes that the draft model is asked for in rounds of their own, and of their rows in the tree."""
        return self.price.plus(self.round_price + self.row_price)


NOTHING = DraftBudget(0)
LONGEST_CHAIN = 16  # nodes that are reckoned with
CONTINUES = 0.75  # a chain that the stores begin goes on


def chain_gain(chance: float, hope: float, price: NodePrice) -> float:
    """What a chain promises beyond its price, in tokens, as far as its nodes are worth theirs. chance: of its first
    node; hope: of each further one, where the one before it is accepted."""
    gain = 0.0
    for place in range(LONGEST_CHAIN):
        cost = price_at(price, place)
        if chance <= cost:
            break
        gain += chance - cost
        chance *= hope
    return gain


class Stakes(NamedTuple):
    """Of a look for a tree, in tokens. node: price of the tree's nodes; model: what one of the draft model's promises
    beyond its price; least_gain: what a tree must."""

    node: NodePrice = FREE
    model: float = 0.0
    least_gain: float = 0.0


NO_STAKES = Stakes()


def tree_gain(chance: float, stakes: Stakes) -> float:
    """What a tree promises, beyond what it must, where the likeliest token is so likely. Kernels compile it, too."""
    return max(chain_gain(chance, CONTINUES, stakes.node), stakes.model) - stakes.least_gain
