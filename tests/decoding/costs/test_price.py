"""A node is drafted when it is likelier than its price."""

from dataclasses import replace

import numpy as np
import pytest

from decoding.costs.acceptance import PLAIN, Acceptance, Brought, Lately
from decoding.costs.calibration import LEAST_TOKEN_SHARE, fit_cost_curve
from decoding.costs.credit import credit, losses
from decoding.costs.price import (
    CostCurve,
    Curves,
    DraftBudget,
    ExpertCosts,
    NodePrice,
    chain_gain,
    model_gain,
    num_nodes_for,
    price_at,
    price_of,
)
from decoding.costs.pricing import (
    DEAR_NODE,
    HARVEST_TOKENS,
    HARVEST_WORTH,
    MOST_HARVEST,
    Demand,
    Pricing,
    fitted,
    node_price,
    present_rate,
)


@pytest.mark.parametrize("few", [0, 4, 6, 32])
def test_the_fit_finds_the_curve_that_made_the_samples(few: int) -> None:
    curve = CostCurve(base=2e-3, token=5e-5, key=1e-7, few=few, few_token=2e-5)
    samples = [(n, c, curve.step_seconds([n], [c])) for n in (1, 2, 4, 6, 8, 16, 32, 64) for c in (32, 512)]
    fitted = fit_cost_curve(samples)
    assert fitted.few == few
    assert (fitted.base, fitted.token, fitted.key) == pytest.approx((curve.base, curve.token, curve.key), rel=1e-6)
    assert few == 0 or fitted.few_token == pytest.approx(curve.few_token, rel=1e-6)


@pytest.mark.parametrize("few", [128, 256, 512])
def test_the_fit_finds_where_a_device_stops_being_bound_by_its_weights(few: int) -> None:
    """Up to a few hundred tokens a step takes as long as one, which reads the weights."""
    curve = CostCurve(base=6e-3, token=8e-5, key=1e-9, few=few, few_token=3.1e-5)
    samples = [(n, c, curve.step_seconds([n], [c])) for n in (1, 4, 16, 64, 128, 256, 512, 1024) for c in (8, 512)]
    fitted = fit_cost_curve(samples)
    assert fitted.few == few
    assert (fitted.base, fitted.token) == pytest.approx((curve.base, curve.token), rel=1e-6)


def test_no_coefficient_of_a_fit_is_negative_and_no_row_is_free() -> None:
    samples = [(n, c, 1e-3 - 1e-7 * n - 1e-9 * n * c) for n in (1, 8, 32) for c in (32, 512)]
    fitted = fit_cost_curve(samples)
    assert min(fitted.base, fitted.key) >= 0
    assert fitted.token >= fitted.few_token >= LEAST_TOKEN_SHARE * fitted.base


@pytest.mark.parametrize("token", [0.003, 0.01, 0.03, 0.1, 0.3])
@pytest.mark.parametrize("decay", [0.5, 0.8, 0.95])
@pytest.mark.parametrize("few", [0, 6])
def test_pricing_nodes_settles_at_the_size_of_most_tokens_per_second(token: float, decay: float, few: int) -> None:
    """Nodes of chances decay, decay**2, ... are drafted while worth their price: the ratio is maximised."""
    curve = CostCurve(base=1.0, token=token, key=0.0, few=few, few_token=token / 10)
    chances = 0.9 * decay ** np.arange(64)

    def tokens_per_second(num_nodes: int) -> float:
        return float((1 + chances[:num_nodes].sum()) / curve.step_seconds([num_nodes + 1], [0]))

    lately = Acceptance()
    for _ in range(300):
        price = node_price(curve, present_rate(curve, [lately], [0]).tokens_a_second, 0)
        num_nodes = sum(chance > price_at(price, place) for place, chance in enumerate(chances))
        lately.update(Brought(1 + chances[:num_nodes].sum(), 1 + num_nodes))
    best = max(tokens_per_second(n) for n in range(65))
    assert tokens_per_second(num_nodes) == pytest.approx(best, rel=0.01)


def test_requests_share_the_rows_that_a_step_has_to_spare() -> None:
    curve = CostCurve(base=1.0, token=0.1, key=0.0, few=8, few_token=0.01)
    prices = [node_price(curve, 2.0, 0, num_requests) for num_requests in (1, 2, 4, 5, 9)]
    assert [price.num_spare for price in prices] == [7, 3, 1, 0, 0]
    assert [price_at(prices[1], place) for place in (0, 2, 3)] == pytest.approx([0.02, 0.02, 0.2])
    assert price_of(prices[1], 5) == pytest.approx(sum(price_at(prices[1], place) for place in range(5)))
    (budget,) = budgets_of(Pricing(64, Curves(curve)), [demand(None)])
    assert budget.price.num_spare == 7


def test_a_row_as_dear_as_a_step_costs_a_whole_token() -> None:
    curve = CostCurve(base=0.0, token=1.0, key=0.0)
    assert node_price(curve, present_rate(curve, [Acceptance()], [10]).tokens_a_second, 10).usual == pytest.approx(1.0)


def test_prices_rise_as_the_batch_grows() -> None:
    curve = CostCurve(base=1.0, token=0.03, key=0.0)
    many, one = present_rate(curve, [Acceptance()] * 16, [10] * 16), present_rate(curve, [Acceptance()], [10])
    assert many.tokens_a_second > 3 * one.tokens_a_second


def test_a_long_context_makes_its_own_nodes_dearer() -> None:
    curve = CostCurve(base=1.0, token=0.03, key=0.001)
    rate = present_rate(curve, [Acceptance(), Acceptance()], [10, 1000]).tokens_a_second
    assert node_price(curve, rate, 1000).usual == pytest.approx(node_price(curve, rate, 10).usual * 1.03 / 0.04)


def test_a_pace_below_plain_decoding_does_not_make_nodes_cheap() -> None:
    curve = CostCurve(base=1.0, token=0.5, key=0.0)
    wasteful = Acceptance(Lately(Brought(1.0, 64.0), PLAIN))
    assert node_price(curve, present_rate(curve, [wasteful], [0]).tokens_a_second, 0).usual == pytest.approx(0.5 / 1.5)


def test_plain_seconds_are_those_of_one_row_per_request() -> None:
    curve = CostCurve(base=1.0, token=0.1, key=0.01)
    assert curve.plain_seconds(6, [10, 20]) == pytest.approx(3 * (1.0 + 0.2 + 0.3))


def demand(max_nodes: int | None, tokens_left: int = 100, hit_rate: float = 1.0, **acceptance: float) -> Demand:
    brought = Brought()._replace(**acceptance)
    lately = Acceptance(Lately(brought, brought))
    return Demand(max_nodes, context=10, tokens_left=tokens_left, acceptance=lately, hit_rate=hit_rate)


def budgets_of(
    pricing: Pricing, demands: list[Demand], chances: list[float | None] | None = None, reading: tuple[int, ...] = ()
) -> list[DraftBudget]:
    """chances: that the likeliest next tokens are sure, unless given."""
    return pricing.budgets(pricing.rate(demands, reading), demands, chances or [1.0] * len(demands))


CHEAP = CostCurve(base=1.0, token=0.001, key=0.0)


def test_budgets_that_are_asked_for_are_given_up_to_the_most_and_shrink_alike_where_room_is_short() -> None:
    pricing = Pricing(64, Curves(CHEAP))
    demands = [demand(8), demand(80), demand(24)]
    budgets = budgets_of(pricing, demands)
    assert [budget.max_nodes for budget in fitted(budgets, 512)] == [8, 64, 24]
    assert [budget.max_nodes for budget in fitted(budgets, 48)] == [4, 32, 12]
    assert [budget.max_nodes for budget in fitted(budgets, 0)] == [0, 0, 0]
    assert budgets_of(pricing, [], reading=(5,)) == []


def test_a_sequence_with_one_token_to_go_drafts_nothing() -> None:
    demands = [demand(8, tokens_left=1), demand(None, tokens_left=1), demand(8)]
    budgets = budgets_of(Pricing(64, Curves(CHEAP)), demands)
    assert [budget.max_nodes for budget in budgets] == [0, 0, 8]


@pytest.mark.parametrize("max_nodes", [None, 8])
def test_a_tree_is_no_deeper_than_what_may_still_be_emitted_and_as_broad_as_ever(max_nodes: int | None) -> None:
    last, early = budgets_of(Pricing(64, Curves(CHEAP)), [demand(max_nodes, tokens_left=3), demand(max_nodes)])
    assert last == early._replace(max_depth=2)
    assert early.max_depth == 99


def test_one_slow_moment_moves_no_price() -> None:
    lately = Acceptance()
    assert lately.draft_seconds == 0
    for seconds in (0.002, 0.003, None, 9.0, 0.002, 0.003, 9.0):
        lately.update(Brought(2, 5), draft_seconds=seconds)
    assert lately.draft_seconds == 0.003
    for _ in range(9):
        lately.update(Brought(2, 5), draft_seconds=0.1)
    assert lately.draft_seconds == 0.1, "but a lasting change is believed"


def test_who_weighs_its_nodes_is_told_what_they_and_the_step_cost_and_who_asks_for_a_number_is_not() -> None:
    weighing, asking = budgets_of(Pricing(64, Curves(CHEAP)), [demand(None), demand(8)])
    assert weighing.max_nodes == 64
    assert weighing.price.usual > 0
    assert (asking.price.usual, asking.round_price) == (0, 0)


def test_who_drafts_with_the_draft_model_pays_for_its_rounds_together() -> None:
    pricing = Pricing(64, Curves(CHEAP, CostCurve(base=0.1, token=0.001, key=0.0)))
    runs = demand(None)._replace(runs_draft_model=True)
    alone, together = budgets_of(pricing, [runs])[0], budgets_of(pricing, [runs, runs])[0]
    assert alone.round_price > 0
    assert alone.row_price == pytest.approx(alone.round_price / 100)
    assert together.round_price == pytest.approx(alone.round_price, rel=0.05)  # twice the rate, shared by two
    assert budgets_of(pricing, [runs._replace(runs_draft_model=False)])[0].round_price == 0


def test_a_block_is_paid_for_once_and_a_round_dearer_than_any_token_may_be_worth_what_it_names() -> None:
    pricing = Pricing(64, Curves(CHEAP, CostCurve(base=1.5, token=0.002, key=0.0)))
    by_token = demand(None)._replace(runs_draft_model=True, hit_rate=0.8)
    (asked,) = pricing.budgets(pricing.rate([by_token]), [by_token], [0.0])
    (block,) = pricing.budgets(pricing.rate([by_token]), [by_token._replace(block_len=8)], [0.0])
    assert asked.max_nodes == 0, "a round for each token"
    assert block.round_price > 1
    assert block.max_nodes > 0
    assert block.block_len == 8
    assert block.most_rounds == pytest.approx(block.credit / (block.round_price + 8 * block.row_price))


@pytest.mark.parametrize("hit_rate", [0.3, 0.9])
def test_what_a_block_promises_is_its_chain_less_one_round_and_all_its_rows(hit_rate: float) -> None:
    price, round_price, row_price = NodePrice(0.05), 0.4, 0.01
    chain = chain_gain(hit_rate, hit_rate, price)
    promise = model_gain(hit_rate, price, round_price, row_price, 8)
    assert promise == pytest.approx(max(0.0, chain - round_price - 8 * row_price))
    by_token = chain_gain(hit_rate, hit_rate, price.plus(round_price + row_price))
    assert model_gain(hit_rate, price, round_price, row_price, 1) == by_token


def test_a_chain_costs_its_rows_without_their_logits_and_the_keys_they_see() -> None:
    curve, draft_curve = CostCurve(1.0, 0.1, 0.001, head=0.04), CostCurve(0.5, 0.01, 0.0)
    pricing = Pricing(8, Curves(curve, draft_curve))
    assert pricing.seconds_of_chain(10, 100, False) == pytest.approx(10 * 0.06 + 10 * 105 * 0.001)
    assert pricing.seconds_of_chain(10, 100, True) == pytest.approx(10 * 0.07 + 10 * 105 * 0.001)


@pytest.mark.parametrize("truth", [0.3, 1.0, 3.0])
@pytest.mark.parametrize("busy", [1.0, 2.0])
def test_what_chains_add_is_learnt_beside_how_busy_the_machine_is(truth: float, busy: float) -> None:
    curve = CostCurve(1.0, 0.1, 0.001)
    pricing, plain = Pricing(8, Curves(curve)), busy * curve.step_seconds([1, 1], [10, 20])
    first = pricing.seconds_of_chain(64, 500, False)
    for _ in range(30):
        pricing.note_step(plain, [1, 1], [10, 20], 0.0)
    for _ in range(30):
        expected = pricing.seconds_of_chain(64, 500, False)
        pricing.note_step(plain + truth * first, [1, 1], [10, 20], expected)
    learnt = pricing.seconds_of_chain(64, 500, False)
    assert learnt == pytest.approx(truth * first, rel=0.02)
    pricing.note_step(1000 * first, [1, 1], [10, 20], learnt)
    assert pricing.seconds_of_chain(64, 500, False) < 1.3 * learnt, "one slow step is not believed"


def test_as_many_of_a_prompts_tokens_are_harvested_as_cost_what_they_bring() -> None:
    curve = CostCurve(1.0, 0.1, 0.0, head=0.01)
    plain = demand(None, emitted=1.0, tokens=1.0)
    for num_requests, share in ((1, 110), (10, 20)):  # ten requests wait for the logits of one
        pricing = Pricing(8, Curves(curve))
        assert pricing.harvest_len(pricing.rate([plain] * num_requests)) == pytest.approx(HARVEST_TOKENS * share, abs=1)
    free = Pricing(8, Curves(replace(curve, head=0.0)))
    assert free.harvest_len(free.rate([plain])) == MOST_HARVEST


def test_logits_are_learned_from_where_that_is_little_of_a_step() -> None:
    token = 0.1
    most = HARVEST_WORTH * (1 - token / DEAR_NODE)
    asked = demand(None, emitted=1.0, tokens=1.0)
    for harvest, harvests in ((0.9 * most, True), (1.1 * most, False)):
        pricing = Pricing(8, Curves(CostCurve(1 - token, token, 0.0, harvest=harvest)))
        assert pricing.harvests(pricing.rate([asked])) == harvests
        (budget,) = budgets_of(pricing, [asked])
        assert (budget.harvests, budget.price.usual) == (harvests, pytest.approx(token + harvests * harvest))
        assert budgets_of(pricing, [asked._replace(harvests=not harvests)])[0].harvests != harvests
    dear = Pricing(8, Curves(CostCurve(1 - DEAR_NODE, 1.01 * DEAR_NODE, 0.0, harvest=1e-9)))
    assert not dear.harvests(dear.rate([asked])), "only what is likely is drafted at such prices"


@pytest.mark.parametrize("chance", [0.1, 0.4, 0.9])
@pytest.mark.parametrize("hit_rate", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("price", [0.01, 0.2, 0.6])
def test_a_chain_gains_what_its_best_beginning_does(chance: float, hit_rate: float, price: float) -> None:
    nodes = chance * hit_rate ** np.arange(16) - price
    assert chain_gain(chance, hit_rate, NodePrice(price)) == pytest.approx(max(0.0, np.cumsum(nodes).max()))


def modelled(hit_rate: float) -> Demand:
    return demand(None, hit_rate=hit_rate)._replace(runs_draft_model=True)


def test_nothing_is_grown_where_nothing_can_be_worth_its_price() -> None:
    pricing = Pricing(64, Curves(CostCurve(1.0, 0.1, 0.0), CostCurve(0.1, 0.001, 0.0)))
    for chance, hit_rate, max_nodes in ((0.05, 0.01, 0), (0.9, 0.01, 64), (0.05, 0.95, 64)):
        (budget,) = budgets_of(pricing, [modelled(hit_rate)], [chance])
        assert budget.max_nodes == max_nodes


def test_who_was_not_probed_drafts_nothing() -> None:
    budgets = budgets_of(Pricing(64, Curves(CHEAP)), [demand(None), demand(8), demand(None)], [None, None, 0.9])
    assert [budget.max_nodes for budget in budgets] == [0, 0, 64]


@pytest.mark.parametrize("num_requests", [1, 4, 16, 64])
def test_among_many_requests_the_surest_token_is_not_worth_a_node(num_requests: int) -> None:
    pricing = Pricing(64, Curves(CostCurve(1.0, 0.2, 0.0)))
    budgets = budgets_of(pricing, [demand(None, emitted=1.0, tokens=1.0)] * num_requests, [0.5] * num_requests)
    assert {budget.max_nodes > 0 for budget in budgets} == {num_requests < 16}


def test_a_question_changes_nothing() -> None:
    pricing, demands = Pricing(64, Curves(CHEAP, CostCurve(0.1, 0.001, 0.0))), [modelled(0.9), demand(8), demand(None)]
    rate = pricing.rate(demands, (40,))
    first = pricing.budgets(rate, demands, [0.3, 1.0, None])
    pricing.budgets(pricing.rate(demands * 8), demands * 8, [1.0] * 24)
    assert pricing.rate(demands, (40,)) == rate
    assert pricing.budgets(rate, demands, [0.3, 1.0, None]) == first


def test_the_draft_models_forwards_are_shared_by_those_alone_to_whom_they_are_worth_it() -> None:
    pricing = Pricing(64, Curves(CostCurve(1.0, 0.05, 0.0), CostCurve(0.1, 0.001, 0.0)))
    few = budgets_of(pricing, [modelled(0.95), *[modelled(0.05)] * 3])
    all_four = budgets_of(pricing, [modelled(0.95)] * 4)
    assert few[0].round_price == pytest.approx(4 * all_four[0].round_price)
    assert few[1].round_price == few[0].round_price  # to be had by who asks after all


def test_a_forward_of_the_draft_model_may_be_worth_it_only_to_many() -> None:
    pricing = Pricing(64, Curves(CostCurve(1.0, 0.005, 0.0), CostCurve(0.5, 0.001, 0.0)))
    asked = modelled(0.9)
    assert [each.max_nodes for each in budgets_of(pricing, [asked], [0.0])] == [0]
    assert [each.max_nodes for each in budgets_of(pricing, [asked] * 32, [0.0] * 32)] == [64] * 32


@pytest.mark.parametrize(("most", "credit", "expected"), [(10, 9.0, 10), (10, 0.5, 5), (None, 0.5, 5), (10, 0.0, 0)])
def test_a_tree_of_a_size_of_its_own_is_cut_to_what_the_credit_pays_for(
    most: int | None, credit: float, expected: int
) -> None:
    curve = CostCurve(1.0, 0.1, 0.0)
    rate = 1 / curve.step_seconds([1], [0])
    asked = demand(None, emitted=1.0, tokens=1.0)._replace(most_nodes=most, credit=credit * rate * 1.001)
    (budget,) = budgets_of(Pricing(64, Curves(curve)), [asked])
    assert budget.max_nodes == expected


def test_beside_prompts_that_are_read_nodes_cost_what_they_will_when_those_decode() -> None:
    pricing = Pricing(64, Curves(CostCurve(1.0, 0.01, 0.0)))
    (alone,) = budgets_of(pricing, [demand(None)])
    (beside,) = budgets_of(pricing, [demand(None)], reading=(100,) * 7)
    assert beside.price.usual > 2 * alone.price.usual


@pytest.mark.parametrize("price", [NodePrice(0.2), NodePrice(0.2, 0.05, 7), NodePrice(0.2, 0.0, 7)])
def test_so_many_nodes_cost_what_there_is_for_them(price: NodePrice) -> None:
    for tokens in (0.0, 0.1, 0.3, 1.0, 4.0):
        assert price_of(price, num_nodes_for(price, tokens)) == pytest.approx(tokens, abs=1e-9) or price.spare == 0
    assert num_nodes_for(NodePrice(0.0), 0.5) == np.inf


@pytest.mark.parametrize("draft_curve", [None, CostCurve(0.3, 0.05, 0.0), CostCurve(0.02, 0.001, 0.0)])
@pytest.mark.parametrize("token", [0.01, 0.05, 0.2, 0.9])
@pytest.mark.parametrize("luck", ["none", "at first", "now and then"])
def test_a_reply_of_a_hundred_tokens_takes_a_twentieth_longer_at_most_whatever_comes(
    draft_curve: CostCurve | None, token: float, luck: str
) -> None:
    """A drafter that spends all it may, and of whose tokens few come or none."""
    curve = CostCurve(1.0, token, 1e-4)
    pricing, lately, random = Pricing(64, Curves(curve, draft_curve)), Acceptance(), np.random.default_rng(1)
    lost = seconds = plain = 0.0
    num_emitted, worst, is_gained = 0, 0.0, False
    while num_emitted < 400:
        asked = Demand(
            None,
            context=num_emitted,
            tokens_left=400,
            acceptance=lately,
            runs_draft_model=draft_curve is not None,
            credit=credit(num_emitted, lost),
        )
        (budget,) = pricing.budgets(pricing.rate([asked]), [asked], [1.0])
        draft = 0.0
        if draft_curve is not None and budget.max_nodes:
            draft = int(min(budget.most_rounds, 64)) * draft_curve.step_seconds([1], [num_emitted])
        came = {"none": 0, "at first": 6 * (num_emitted < 30), "now and then": 3 * (random.random() < 0.1)}[luck]
        drafted = (draft, 1 + min(came, budget.max_nodes))
        (more,) = losses(curve, [1 + budget.max_nodes], [num_emitted], [drafted])
        lately.update(Brought(drafted[1], 1 + budget.max_nodes), PLAIN, draft)
        lost += more
        seconds += draft + curve.step_seconds([1 + budget.max_nodes], [num_emitted])
        plain += curve.plain_seconds(drafted[1], [num_emitted])
        num_emitted += drafted[1]
        is_gained |= budget.max_nodes > 0
        if num_emitted >= 100:
            worst = max(worst, seconds / plain)
    assert is_gained
    assert worst <= 1.05


def test_a_step_of_several_loses_what_each_tree_added() -> None:
    curve = CostCurve(1.0, 0.1, 0.0)
    first, second = losses(curve, [5, 1], [10, 10], [(0.3, 2), (0.0, 1)])
    rate = 2 / curve.step_seconds([1, 1], [10, 10])
    assert (first, second) == (pytest.approx(rate * (0.4 + 0.3) - 1), 0.0)
    assert losses(curve, [], [], []) == [], "of a step of prompts alone"


def test_a_node_costs_what_the_stores_alone_would_bring_where_the_draft_model_brings_less() -> None:
    curve = CostCurve(1.0, 0.1, 0.0)
    asked, stores = Brought(8.0, 10.0), Brought(3.0, 5.0)
    dear, cheap = Acceptance(Lately(asked, stores, 4.0)), Acceptance(Lately(asked, stores, 0.1))
    assert present_rate(curve, [dear], [10]).tokens_a_second == pytest.approx(3 / 1.5)
    assert present_rate(curve, [cheap], [10]).tokens_a_second == pytest.approx(8 / 2.1)
    assert present_rate(curve, [Acceptance(Lately(Brought(1.0, 9.0), PLAIN))], [10]).emitted == [1.0]
    for _ in range(60):
        cheap.update(Brought(2.0, 5.0), stores, 3.0)
    assert present_rate(curve, [cheap], [10]).tokens_a_second == pytest.approx(3 / 1.5, rel=0.01)


EXPERTS = ExpertCosts(seconds=1e-4, num_chosen=8, num_experts=64)


def test_the_fit_finds_what_experts_take() -> None:
    curve = CostCurve(base=2e-3, token=5e-5, key=1e-7, experts=EXPERTS)
    sizes = [(n, c) for n in (1, 2, 4, 6, 8, 16, 32, 64) for c in (32, 512)]
    samples = [(n, c, curve.step_seconds([n], [c])) for n, c in sizes]
    fitted = fit_cost_curve(samples, [EXPERTS.num_distinct(n) for n, _ in sizes])
    assert fitted.experts is not None
    assert (fitted.base, fitted.token, fitted.experts.seconds) == pytest.approx((2e-3, 5e-5, 1e-4), rel=1e-6)


@pytest.mark.parametrize("novelty", [0.0, 0.3, 1.0])
def test_what_tokens_chose_says_how_alike_they_are(novelty: float) -> None:
    experts = replace(EXPERTS, novelty=novelty)
    assert experts.num_distinct(1) == pytest.approx(8)
    assert experts.num_distinct(1e4) == pytest.approx(64 if novelty else 8)
    assert EXPERTS.novelty_of(6, experts.num_distinct(6)) == pytest.approx(novelty, abs=1e-9)
    assert EXPERTS.novelty_of(1, 8) is None
    assert EXPERTS.novelty_of(60, 63.9) is None
    assert ExpertCosts(1e-4, 4, 4).novelty_of(6, 4) is None


def test_nodes_with_experts_of_their_own_are_dearer() -> None:
    def price(novelty: float, num_requests: int = 1) -> float:
        experts = replace(EXPERTS, novelty=novelty)
        return node_price(CostCurve(2e-3, 5e-5, 0.0, experts=experts), 100.0, 0, num_requests).usual

    assert price(0.0) == pytest.approx(100 * 5e-5)
    assert price(0.0) < price(0.3) < price(1.0) < 100 * (5e-5 + 8 * EXPERTS.seconds)
    assert price(1.0, 64) < 1.1 * price(0.0), "with many requests all experts are read anyway"
