"""How much each sequence may draft at a step: who looks for a tree, and what its nodes cost at the present rate.

Owns the rate, which follows from what the running requests have lately emitted and drafted, so trees shrink as the
batch grows and vanish where drafting does not pay. What a price means is `price`'s.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from decoding.costs.curve import CostCurve, Curves
from decoding.costs.price import NOTHING, DraftBudget, NodePrice, Stakes, chain_gain, price_at, price_of, tree_gain

SMOOTHING = 0.1
MEDIAN_OF = 9  # steps: one slow moment of the machine moves no price


@dataclass(slots=True)
class Pace:
    """Of one request: running means of what its steps emit and how many rows they take, and the median of what the
    draft model lately took for it, in seconds."""

    emitted: float = 2.0  # a hopeful start: the first trees are drafted at a fair price
    rows: float = 8.0
    _seconds: deque[float] = field(default_factory=lambda: deque(maxlen=MEDIAN_OF))

    def update(self, num_drafted: int, num_emitted: int, draft_seconds: float | None = 0.0) -> None:
        """A step went by; draft_seconds: None where they do not tell what drafting costs."""
        self.emitted += SMOOTHING * (num_emitted - self.emitted)
        self.rows += SMOOTHING * (num_drafted + 1 - self.rows)
        if draft_seconds is not None:
            self._seconds.append(draft_seconds)

    @property
    def draft_seconds(self) -> float:
        return sorted(self._seconds)[len(self._seconds) // 2] if self._seconds else 0.0


def always(price: float) -> bool:  # noqa: ARG001
    return True


def sure(stakes: Stakes) -> float:  # noqa: ARG001
    """The look of a drafter that looks for nothing before it drafts."""
    return 1.0


@dataclass(frozen=True, slots=True)
class Rate:
    """Of the requests that decode in one step together. emitted, rows: of each, in such a step."""

    tokens_a_second: float
    emitted: Sequence[float]
    rows: Sequence[float]


def present_rate(curve: CostCurve, paces: Sequence[Pace], contexts: Sequence[int]) -> Rate:
    """At their present paces, or that of plain decoding, which is always to be had."""
    ones = [1.0] * len(paces)
    plain = Rate(len(paces) / curve.step_seconds(ones, contexts), ones, ones)
    emitted, rows = [pace.emitted for pace in paces], [pace.rows for pace in paces]
    seconds = curve.step_seconds(rows, contexts) + sum(pace.draft_seconds for pace in paces)
    drafted = Rate(sum(emitted) / seconds, emitted, rows)
    return max(plain, drafted, key=lambda rate: rate.tokens_a_second)


def node_price(
    curve: CostCurve, rate: float, context: int, num_requests: int = 1, seconds_beside: float = 0.0
) -> NodePrice:
    """What nodes cost one of so many requests, at `context` committed tokens, in tokens: the rows that a step has to
    spare beside their own are shared. seconds_beside: of each node, beside the forward."""
    num_spare = max(0, curve.few - num_requests) // num_requests
    more = curve.key * context + seconds_beside
    return NodePrice(rate * (curve.row + more), rate * (curve.few_row + more), num_spare)


# Where there is no draft model stores that learn from the prompt make replies shorter in steps, of which its last 128
# rows bring three quarters. A row's likeliest tokens and what is learned from them take twice as long again as its
# logits.
HARVEST_TOKENS = 2  # that a reply of some hundred is given sooner by so, for what the logits take
ROW_WORTH = 0.015  # tokens: where learning from a row costs more, copies are enough
DEAR_NODE = 0.4  # tokens: at such a price only likely nodes are drafted, and rows teach what else might come
MOST_HARVEST = 1 << 20
READING = Pace(1.0, 1.0)  # of a request whose prompt is being read, once it decodes
TINY = 1e-9  # seconds
MOST_SURPRISE = 2.0  # of one step: another process may have had the machine
CHAIN_SMOOTHING = 0.3
LEAST_FACTOR = 0.1


class Demand(NamedTuple):
    """What one decoding sequence asks of a step. max_nodes: of a budget asked for, None where each node is weighed
    against its price; context: its tokens so far; tokens_left: that it may yet have; harvests: whether its rows are
    learned from, None where that is weighed against its price. hope: that the token after one that the draft model was
    run on is among those it thinks likeliest. is_awake: whether to look for a tree, told what that costs in tokens;
    look: how likely the likeliest next token is, before any tree is grown."""

    max_nodes: int | None
    context: int
    tokens_left: int
    pace: Pace
    runs_draft_model: bool = False
    harvests: bool | None = None
    hope: float = 1.0
    is_awake: Callable[[float], bool] = always
    look: Callable[[Stakes], float] = sure


class Prices(NamedTuple):
    """In tokens: of a tree's nodes, of a round of the draft model and of its rows."""

    node: NodePrice
    round: float = 0.0
    row: float = 0.0


def _model_gain(hope: float, prices: Prices) -> float:
    """What a tree of the draft model's promises beyond its nodes, rounds and rows."""
    return chain_gain(hope, hope, prices.node.plus(prices.round + prices.row))


class Pricing:
    """most_nodes: the largest budget anybody gets. costs: that budgets follow, as they change."""

    def __init__(self, most_nodes: int, costs: Curves) -> None:
        self._most_nodes = most_nodes
        self._step_factor = self._chain_factor = 1.0  # of what the curve says
        self._rate = 1 / costs.curve.step_seconds([1], [0])  # tokens a second of the latest step
        self._num_requests = 1  # in it
        self._costs = costs

    @property
    def base_rows(self) -> float:
        """How many rows take as long as a step takes beside its rows."""
        return self._costs.curve.base / self._costs.curve.row

    @property
    def harvests(self) -> bool:
        """Whether a tree's rows are worth being learned from at the present rate: less, the dearer nodes are."""
        curve = self._costs.curve
        return self._rate * curve.harvest <= ROW_WORTH * (1 - self._rate * curve.row / DEAR_NODE)

    def harvest_rows(self, share: float) -> int:
        """How many of a prompt's last rows are worth their logits to drafting. share: of the steps that have trees."""
        return int(min(share * HARVEST_TOKENS / (self._rate * max(self._costs.curve.head, TINY)), MOST_HARVEST))

    def seconds_of_rows(self, num_rows: int, context: int, runs_draft_model: bool) -> float:
        """What a chain of so many rows after `context` tokens adds to a step of others."""
        curves = [self._costs.curve]
        if runs_draft_model and self._costs.draft_curve is not None:
            curves.append(self._costs.draft_curve)
        num_keys = num_rows * (context + num_rows / 2)
        seconds = sum((curve.row - curve.head) * num_rows + curve.key * num_keys for curve in curves)
        return self._chain_factor * seconds

    def note_step(self, seconds: float, rows: Sequence[int], contexts: Sequence[int], chains: float) -> None:
        """A step of so many rows at these contexts, and of chains that were expected to add `chains`, took `seconds`.

        Without chains it tells how busy the machine is; with them, what chains add beside that: their rows share what
        they read, so the curve, which is measured on few rows, says too much of them.
        """
        expected = self._costs.curve.step_seconds(rows, contexts)
        if chains == 0:
            self._step_factor = _follow(self._step_factor, seconds / expected / self._step_factor)
        else:
            self._chain_factor = _follow(self._chain_factor, (seconds - self._step_factor * expected) / chains)

    def budgets(self, demands: Sequence[Demand], reading: Sequence[int] = ()) -> list[DraftBudget]:
        """A budget for each demand, wherever the room may be. reading: how many tokens each of the other requests has
        that run: their prompts are being read, and what seconds are worth is what they are when those decode, too."""
        if not demands:
            return []
        paces = [*(demand.pace for demand in demands), *(READING for _ in reading)]
        rate = present_rate(self._costs.curve, paces, [*(demand.context for demand in demands), *reading])
        self._rate = rate.tokens_a_second
        self._num_requests = len(paces)
        chances = self._chances(demands)
        num_asking, whole = self._num_asking(demands, chances), sum(rate.emitted)
        own = zip(demands, chances, rate.emitted, rate.rows, strict=False)
        return [
            self._budget(demand, chance, num_asking, (whole, emitted, rows)) for demand, chance, emitted, rows in own
        ]

    def _chances(self, demands: Sequence[Demand]) -> list[float | None]:
        """Of each one's likeliest next token; None where nothing is drafted. Nobody looks where the surest token would
        not be worth a tree."""
        look_price = self._rate * self._costs.curve.look
        awake = [each.max_nodes is None and each.tokens_left > 1 and each.is_awake(look_price) for each in demands]
        asked = [1.0 if each.max_nodes and each.tokens_left > 1 else None for each in demands]
        stakes = self._best_stakes(demands) if any(awake) else None
        if stakes is None or tree_gain(1.0, stakes) <= 0:
            return asked
        found = zip(demands, awake, asked, strict=True)
        return [each.look(stakes) if is_awake else chance for each, is_awake, chance in found]

    def _best_stakes(self, demands: Sequence[Demand]) -> Stakes:
        """Of looks for a tree, where nodes and the draft model cost least."""
        best = demands[0]._replace(
            context=min(demand.context for demand in demands),
            runs_draft_model=any(demand.runs_draft_model for demand in demands),
            harvests=False,
            hope=max(demand.hope for demand in demands),
        )
        return self._stakes(best, self._prices(best, len(demands)))

    def _stakes(self, demand: Demand, prices: Prices) -> Stakes:
        model = _model_gain(demand.hope, prices) if self._runs_model(demand) else 0.0
        return Stakes(prices.node, model, self._least_gain)

    def _num_asking(self, demands: Sequence[Demand], chances: Sequence[float | None]) -> int:
        """How many sequences share the draft model's forwards: those to which it is still worth it when they do."""
        pairs, least = zip(demands, chances, strict=True), self._least_gain
        asking = [demand for demand, chance in pairs if chance is not None and self._runs_model(demand)]
        while len(asking) > 1:
            worth = [each for each in asking if _model_gain(each.hope, self._prices(each, len(asking))) > least]
            if len(worth) == len(asking):
                break
            asking = worth
        return len(asking)

    def _runs_model(self, demand: Demand) -> bool:
        return demand.runs_draft_model and self._costs.draft_curve is not None

    @property
    def _least_gain(self) -> float:
        return self._rate * self._costs.curve.draft

    def _harvests(self, demand: Demand) -> bool:
        return self.harvests if demand.harvests is None else demand.harvests

    def _prices(self, demand: Demand, num_asking: int) -> Prices:
        """num_asking: sequences that share the draft model's rounds."""
        rate, curve, draft = self._rate, self._costs.curve, self._costs.draft_curve
        harvest = curve.harvest if self._harvests(demand) else 0.0
        node = node_price(curve, rate, demand.context, self._num_requests, harvest)
        if draft is None or not demand.runs_draft_model:
            return Prices(node)
        num_asking = max(1, num_asking)
        row = price_at(node_price(draft, rate, demand.context, num_asking), 0)
        return Prices(node, rate * (draft.base / num_asking + draft.draft), row)

    def _budget(
        self, demand: Demand, chance: float | None, num_asking: int, expected: tuple[float, float, float]
    ) -> DraftBudget:
        """Whoever weighs its nodes itself is told their price. num_asking: sequences that share the draft model's
        forwards; expected: tokens of all at this rate, its own, its own rows."""
        if demand.max_nodes is not None and demand.tokens_left > 1:
            return DraftBudget(min(demand.max_nodes, self._most_nodes))
        if chance is None:
            return NOTHING
        prices = self._prices(demand, num_asking)
        if tree_gain(chance, self._stakes(demand, prices)) <= 0:
            return NOTHING
        whole, emitted, rows = expected
        others, fixed = whole - emitted, whole - price_of(prices.node, rows - 1)
        return DraftBudget(self._most_nodes, *prices, self._least_gain, others, fixed, self._harvests(demand))


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
