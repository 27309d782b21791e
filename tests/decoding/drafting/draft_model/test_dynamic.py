"""Trees of a draft model: every rule of growth alone, on a scripted draft model, and what history does to them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pytest
import torch

from decoding.cache.kv_store import KvStore
from decoding.core.request import Request
from decoding.core.sampling_params import SamplingParams
from decoding.core.speculation_params import SpeculationParams
from decoding.core.top_tokens import TopTokens
from decoding.core.tree import DraftTree, Source
from decoding.costs.price import DraftBudget, NodePrice
from decoding.drafting import registry as drafters
from decoding.drafting.draft_model.dynamic import History, ModelDrafter, dynamic_rules, fixed_rules, linear_rules
from decoding.drafting.draft_model.growth import Rules
from decoding.drafting.draft_model.state import DraftModelState
from decoding.kernels.cpu.sampling.noise import gumbel
from decoding.sampling.verify import walk
from decoding.stores.session import lone_session

VOCAB = 100
ROOT = 9
SEED = 2**63 + 77
WIDTH = 10
Law = Callable[[tuple[int, ...]], Sequence[tuple[int, float]]]
OPEN = Rules(b_min=1, b_mid=2, b_max=3, d_base=4, d_max=4, rho_stop=0.0, rho_deep=1.0, tau=0.0)


def by_token(table: Mapping[int, Sequence[tuple[int, float]]]) -> Law:
    """A draft model that looks at the last token alone; after any other it is sure of token 50."""
    return lambda path: table.get(path[-1] if path else ROOT, [(50, 1.0)])


def chain_law(probability: float) -> Law:
    """One candidate of this probability after everything, the rest spread too thinly to matter."""
    return lambda _path: [(5, probability), *((60 + slot, (1 - probability) / 9) for slot in range(9))]


def random_law(seed: int) -> Law:
    """Another distribution after every path, some sure, some not."""

    def law(path: tuple[int, ...]) -> list[tuple[int, float]]:
        random = np.random.default_rng([seed, *path])
        shares = -np.sort(-random.dirichlet(np.full(WIDTH, random.choice([0.05, 0.3, 1.0]))))
        return list(zip(random.permutation(VOCAB + 20)[:WIDTH].tolist(), shares.tolist(), strict=True))

    return law


def tops_of(law: Law, paths: Sequence[tuple[int, ...]]) -> TopTokens:
    ids, probabilities = np.zeros((len(paths), WIDTH), np.int32), np.zeros((len(paths), WIDTH), np.float32)
    for row, path in enumerate(paths):
        for slot, (token, probability) in enumerate(law(path)):
            ids[row, slot], probabilities[row, slot] = token, probability
    return TopTokens(ids, probabilities)


def request_of(temperature: float = 0.0, **options: object) -> Request:
    return Request(
        id="test",
        prompt=np.array([3, ROOT], np.int32),
        sampling=SamplingParams(max_tokens=4000, temperature=temperature, seed=SEED),
        speculation=SpeculationParams(method="dynamic", **options),  # type: ignore[arg-type]
    )


def state_of(request: Request) -> DraftModelState:
    """In a draft model without layers: there is nothing to keep."""
    return DraftModelState(request, KvStore([], 1, torch.float32, torch.device("cpu")), VOCAB)


def drafter_of(rules: Rules, history: History | None = None, temperature: float = 0.0) -> ModelDrafter:
    request = request_of(temperature)
    return ModelDrafter(request, state_of(request), rules, history)


def tree_of(
    drafter: ModelDrafter,
    law: Law,
    draft_budget: DraftBudget | None = None,
    most_rows: int = 64,
    most_depth: int = 64,
    rows: list[int] | None = None,
) -> DraftTree:
    """Let one tree grow on what `law` says after each path; rows: takes the number of rows of each round."""
    draft_budget = draft_budget or DraftBudget(64)
    drafter.begin(draft_budget, most_rows, most_depth)
    paths: list[tuple[int, ...]] = []
    wanted: list[tuple[int, ...]] = [()]
    while True:
        asked = drafter.grow(tops_of(law, wanted))
        if asked is None:
            break
        wanted = []
        for token, parent in zip(asked.tokens.tolist(), asked.parents[len(paths) :].tolist(), strict=True):
            wanted.append((*(paths[parent] if parent >= 0 else ()), token))
        paths += wanted
        assert len(paths) == len(asked.parents) <= most_rows
        if rows is not None:
            rows.append(len(wanted))
    tree = drafter.propose(draft_budget)
    tree.check_integrity()
    assert tree.num_drafted <= draft_budget.max_nodes
    assert set(tree.sources[1:].tolist()) <= {int(Source.DRAFT_MODEL)}
    assert tree.tokens[0] == ROOT
    return tree


def paths_of(tree: DraftTree) -> list[tuple[int, ...]]:
    """The tokens from the root's children down to every node, the root's own (empty) left out."""
    paths: list[tuple[int, ...]] = [()]
    for token, parent in zip(tree.tokens[1:].tolist(), tree.parents[1:].tolist(), strict=True):
        paths.append((*paths[parent], token))
    return paths[1:]


def depth_of(tree: DraftTree) -> int:
    return int(tree.depths().max())


def verify(drafter: ModelDrafter, tree: DraftTree, is_right: bool) -> None:
    """Tell the drafter that the first branch was accepted to its end, or nothing; the request stays as it is."""
    chosen = np.full(len(tree), VOCAB + 1, np.int32)
    if is_right:
        for node in range(len(tree) - 1, 0, -1):
            chosen[tree.parents[node]] = tree.tokens[node]
    drafter.observe(tree, walk(tree, chosen), None)


@pytest.mark.parametrize("credit", [0.0, 0.5, 0.9, 1.3, 2.5, 6.0])
def test_the_draft_model_is_run_for_what_the_credit_pays_for(credit: float) -> None:
    law: Law = lambda _path: [(20 + slot, 0.1) for slot in range(10)]  # noqa: E731
    budget, rounds = DraftBudget(64, round_price=0.5, row_price=0.1, credit=credit), [1]
    drafter = drafter_of(fixed_rules(SpeculationParams(method="fixed", branching=2, max_depth=4, min_probability=0.0)))
    assert drafter.prepare(budget) == (credit >= 0.6)
    if drafter.prepare(budget):
        tree_of(drafter, law, budget, rows=rounds)
        spent = sum(0.5 + 0.1 * num_rows for num_rows in rounds)
        assert spent <= credit
        assert len(rounds) == 4 or spent + 0.5 + 0.1 * 2 ** len(rounds) > credit, "and for no less"


@pytest.mark.parametrize(("confidence", "breadth"), [(0.95, 1), (0.9, 1), (0.85, 2), (0.4, 2), (0.35, 3), (0.2, 3)])
def test_the_surer_the_draft_model_the_fewer_children(confidence: float, breadth: int) -> None:
    law: Law = lambda _path: [(20, confidence), *((30 + slot, (1 - confidence) / 9) for slot in range(9))]  # noqa: E731
    rules = OPEN._replace(tau_high=0.9 - 1e-6, tau_low=0.4 - 1e-6, d_max=2)
    paths = paths_of(tree_of(drafter_of(rules), law))
    assert [path for path in paths if len(path) == 1] == [(20,), (30,), (31,)][:breadth], "the root gets siblings too"
    assert sum(path[0] == 20 for path in paths if len(path) == 2) == breadth


@pytest.mark.parametrize(
    ("probability", "changes", "depth"),
    [
        (0.8, {}, 4),  # .8 .64 .512: above rho_deep as far as d_max
        (0.75, {}, 3),  # .42 at depth 3 is not worth going deeper
        (0.6, {}, 2),  # .36 at depth 2, where the base depth ends
        (0.8, {"d_max": 3}, 3),
        (0.8, {"rho_deep": 0.9}, 2),
        (0.6, {"d_base": 3}, 3),
        (0.6, {"d_base": 4, "rho_stop": 0.3}, 3),  # .36, then .216
        (0.6, {"d_base": 4, "rho_stop": 0.4}, 2),
        (0.99, {"d_max": 1}, 1),
        (0.99, {"d_max": 0}, 0),
    ],
)
def test_a_node_is_expanded_by_its_depth_and_path_probability(
    probability: float, changes: dict[str, float], depth: int
) -> None:
    rules = Rules(b_min=1, b_mid=1, b_max=1, d_base=2, d_max=4, rho_stop=0.1, rho_deep=0.5, tau=0.0)
    assert depth_of(tree_of(drafter_of(rules._replace(**changes)), chain_law(probability))) == depth


def test_what_falls_below_tau_is_not_in_the_tree() -> None:
    law = by_token({ROOT: [(20, 0.6), (21, 0.3), (22, 0.1)], 20: [(23, 0.5), (24, 0.3), (25, 0.2)]})
    rules = OPEN._replace(d_max=2, tau_high=1.0, tau_low=1.0, tau=0.2)
    everything = paths_of(tree_of(drafter_of(rules._replace(tau=0.0)), law))
    kept = paths_of(tree_of(drafter_of(rules), law))
    assert (22,) in everything
    assert (20, 24) in everything
    assert kept == [(20,), (21,), (20, 23), (21, 50)]  # .18 and .12 on the path are pruned


def chance_of(path: tuple[int, ...], law: Law) -> float:
    """What a node is worth by the draft model, in plain numpy."""
    chance = 1.0
    for depth, token in enumerate(path):
        ids, shares = zip(*law(path[:depth]), strict=True)
        chance *= shares[ids.index(token)]
    return chance


@pytest.mark.parametrize("seed", range(4))
def test_when_the_budget_binds_the_likeliest_nodes_are_the_tree(seed: int) -> None:
    law = random_law(seed)
    everything = tree_of(drafter_of(OPEN), law, DraftBudget(400), 400)
    chances = sorted((chance_of(path, law) for path in paths_of(everything)), reverse=True)
    assert everything.num_drafted > 15
    for budget in (1, 4, 9, 15):
        tree = tree_of(drafter_of(OPEN), law, DraftBudget(budget), 400)
        assert tree.num_drafted == budget
        kept = sorted((chance_of(path, law) for path in paths_of(tree)), reverse=True)
        np.testing.assert_allclose(kept, chances[:budget], rtol=1e-5)


def test_a_late_likely_path_takes_the_room_of_earlier_unlikely_siblings() -> None:
    law = by_token({ROOT: [(20, 0.98), (21, 0.01), (22, 0.01)], 20: [(23, 0.999), (24, 0.001)]})
    rules = OPEN._replace(tau_high=1.1, tau_low=1.1)
    assert paths_of(tree_of(drafter_of(rules), law, DraftBudget(2))) == [(20,), (20, 23)]
    assert (21,) in paths_of(tree_of(drafter_of(rules), law))


def test_probabilities_that_sum_to_more_than_one_make_no_child_likelier_than_its_parent() -> None:
    law: Law = lambda _path: [(5, float(np.nextafter(np.float32(1), np.float32(2))))]  # noqa: E731
    rules = linear_rules(SpeculationParams(method="linear"))
    for budget in (1, 3):
        assert paths_of(tree_of(drafter_of(rules), law, DraftBudget(budget))) == [(5,) * (1 + n) for n in range(budget)]


def test_no_node_is_worth_less_than_its_price() -> None:
    law = random_law(1)
    cheap, dear = (tree_of(drafter_of(OPEN), law, DraftBudget(64, NodePrice(price))) for price in (0.0, 0.2))
    assert 0 < dear.num_drafted < cheap.num_drafted
    assert min(chance_of(path, law) for path in paths_of(dear)) >= 0.2


def test_no_row_lies_beyond_the_draft_models_context() -> None:
    rules = Rules(1, 1, 1, 1.0, 0.0, 8, 8, 0.0, 0.0, 0.0)
    for most_depth in (0, 1, 4):
        rows: list[int] = []
        tree = tree_of(drafter_of(rules), chain_law(0.9), most_depth=most_depth, rows=rows)
        assert sum(rows) == most_depth
        assert depth_of(tree) == most_depth + 1


def test_never_more_rows_than_there_is_room_for_and_the_likeliest_get_it() -> None:
    law = by_token({ROOT: [(20, 0.5), (21, 0.3), (22, 0.2)]})
    rules = OPEN._replace(tau_high=1.1, tau_low=1.1)
    for most_rows in (0, 1, 2, 5):
        rows: list[int] = []
        tree = tree_of(drafter_of(rules), law, most_rows=most_rows, rows=rows)
        assert sum(rows) == most_rows
        if most_rows == 1:
            assert [path for path in paths_of(tree) if len(path) == 2] == [(20, 50)]
            assert depth_of(tree) == 2


def test_a_token_the_target_does_not_have_is_not_drafted() -> None:
    law = by_token({ROOT: [(VOCAB, 0.6), (VOCAB - 1, 0.3), (VOCAB + 5, 0.1)]})
    tree = tree_of(drafter_of(OPEN._replace(d_max=1, tau_high=1.1, tau_low=1.1)), law)
    assert paths_of(tree) == [(VOCAB - 1,)]


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.7])
def test_sampled_children_come_in_the_order_of_the_requests_own_noise(temperature: float) -> None:
    law = random_law(7)
    rules = OPEN._replace(tau_high=1.1, tau_low=1.1, d_base=3, d_max=3)
    tree = tree_of(drafter_of(rules, temperature=temperature), law)
    assert depth_of(tree) == 3
    paths = [(), *paths_of(tree)]
    num_reordered = 0
    for node in range(len(tree)):
        children = tree.tokens[1:][tree.parents[1:] == node].tolist()
        if children:
            ids, shares = (np.array(column) for column in zip(*law(paths[node]), strict=True))
            position = 2 + len(paths[node])
            noise = np.array([gumbel(np.uint64(SEED), position, int(token)) for token in ids])
            with np.errstate(divide="ignore"):
                order = ids[np.argsort(-(np.log(shares.astype(np.float32)) / temperature + noise))][:3].tolist()
            assert children == [token for token in order if token < VOCAB]
            num_reordered += order[0] != ids[0]
    assert num_reordered > 0, "the noise must matter somewhere"


def test_confidence_is_the_draft_models_at_the_requests_temperature() -> None:
    law = by_token({ROOT: [(20, 0.8), (21, 0.2)]})  # .8 to the power of 2 is .94 of both, to the power of 1/2 it is .67
    rules = OPEN._replace(d_max=1)
    breadths = [tree_of(drafter_of(rules, temperature=heat), law).num_drafted for heat in (0.5, 1.0, 2.0)]
    assert breadths == [1, 2, 2]
    assert tree_of(drafter_of(rules._replace(tau_low=0.7), temperature=2.0), law).num_drafted == 2
    assert tree_of(drafter_of(rules._replace(b_max=1, tau_low=0.7), temperature=2.0), law).num_drafted == 1


HISTORY = History(window=10, aim=0.5, depth_step=1.0, confidence_step=0.05)
DEEPENING = Rules(b_min=1, b_mid=1, b_max=1, d_base=3, d_max=6, rho_stop=0.0, rho_deep=1.0, tau=0.0)
WIDENING = OPEN._replace(b_mid=3, d_base=1, d_max=1)


def live(drafter: ModelDrafter, law: Law, is_right: bool, steps: int) -> list[DraftTree]:
    trees = []
    for _ in range(steps):
        trees.append(tree_of(drafter, law))
        verify(drafter, trees[-1], is_right)
    return trees


def test_acceptance_above_the_aim_deepens_and_below_it_flattens_within_bounds() -> None:
    drafter, law = drafter_of(DEEPENING, HISTORY), chain_law(0.7)
    depths = [depth_of(tree) for tree in live(drafter, law, True, 12)]
    assert depths[0] == 3
    assert depths == sorted(depths)
    assert depths[-1] == 5, "one less than the largest depth"
    live(drafter, law, True, 200)
    depths = [depth_of(tree) for tree in live(drafter, law, False, 20)]
    assert depths == sorted(depths, reverse=True)
    assert depths[0] == 5
    assert depths[-1] == 1, "was clipped: 212 steps up are gone after 20 down"


def test_acceptance_above_the_aim_narrows_and_below_it_widens() -> None:
    law = by_token({ROOT: [(20, 0.8), (21, 0.1), (22, 0.1)]})
    drafter = drafter_of(WIDENING, HISTORY._replace(aim=0.1))
    breadths = [tree.num_drafted for tree in live(drafter, law, True, 20)]
    assert (breadths[0], breadths[-1]) == (3, 1)
    assert breadths == sorted(breadths, reverse=True)
    live(drafter, law, True, 100)
    drafter = drafter_of(WIDENING._replace(tau_high=0.7), HISTORY)
    breadths = [tree.num_drafted for tree in live(drafter, law, False, 20)]
    assert (breadths[0], breadths[-1]) == (1, 3)
    assert breadths == sorted(breadths)


def test_the_threshold_of_confidence_stays_between_zero_and_one() -> None:
    law = by_token({ROOT: [(20, 0.8), (21, 0.1), (22, 0.1)]})
    drafter = drafter_of(WIDENING, HISTORY)
    live(drafter, law, False, 400)
    assert live(drafter, law, False, 1)[0].num_drafted == 3
    law_of_one = by_token({ROOT: [(20, 1.0)]})
    breadths = []
    for _ in range(30):  # a threshold of 1 falls by .025 a step once the window holds nothing but accepted trees
        live(drafter, law_of_one, True, 1)
        breadths.append(tree_of(drafter, law).num_drafted)
    assert breadths[-1] == 1


def test_history_moves_by_the_mean_over_its_window() -> None:
    """Ten trees in a window: after ten accepted ones the steps are 1/2, in the first step as well."""
    drafter, law = drafter_of(DEEPENING, HISTORY), chain_law(0.7)
    depths = [depth_of(tree) for tree in live(drafter, law, True, 6)]
    assert depths == [3, 4, 4, 4, 5, 5]  # 3, 3.5, 4, 4.5 (halves round to even), 5, 5
    depths = [depth_of(tree) for tree in live(drafter, law, False, 12)]
    assert depths[0] == 5, "one tree of seven does not turn it"
    assert depths[-1] < 4


def test_parts_can_be_left_out() -> None:
    full = dynamic_rules(SpeculationParams(method="dynamic"))
    assert full.b_min < full.b_mid < full.b_max
    assert full.d_base < full.d_max
    even = dynamic_rules(SpeculationParams(method="dynamic", without=frozenset({"breadth"})))
    assert even == full._replace(b_min=full.b_mid, b_max=full.b_mid)
    level = dynamic_rules(SpeculationParams(method="dynamic", without=frozenset({"depth"})))
    assert level == full._replace(d_max=full.d_base, rho_stop=0.0)


def test_without_history_the_rules_stay() -> None:
    depths = {}
    for without in (frozenset({"best_first"}), frozenset({"best_first", "history"})):
        request = request_of(without=without, max_nodes=60)  # a small budget has no base depth to move
        drafter = drafters.start("dynamic", request, lone_session(2**16), state_of(request))
        assert isinstance(drafter, ModelDrafter)
        first = depth_of(tree_of(drafter, chain_law(0.7)))
        live(drafter, chain_law(0.7), False, 60)
        depths[without] = (first, depth_of(tree_of(drafter, chain_law(0.7))))
    (before, after), (before_alone, after_alone) = depths.values()
    assert before == before_alone == after_alone
    assert after < before


def test_the_request_sets_depth_branching_and_least_probability() -> None:
    options = SpeculationParams(method="fixed", branching=2, max_depth=3, min_probability=0.0)
    assert paths_of(tree_of(drafter_of(fixed_rules(options)), by_token({}))) == [(50,), (50, 50), (50, 50, 50)]
    law: Law = lambda _path: [(20, 0.5), (21, 0.3), (22, 0.2)]  # noqa: E731
    assert tree_of(drafter_of(fixed_rules(options)), law).num_drafted == 2 + 4 + 8
    pruned = fixed_rules(SpeculationParams(method="fixed", branching=2, max_depth=3, min_probability=0.2))
    assert paths_of(tree_of(drafter_of(pruned), law)) == [(20,), (21,), (20, 20)]
    chain = tree_of(drafter_of(linear_rules(SpeculationParams(method="linear", max_depth=6))), law)
    assert paths_of(chain) == [(20,) * depth for depth in range(1, 7)]
    dynamic = dynamic_rules(SpeculationParams(method="dynamic", max_depth=2, min_probability=0.25))
    assert (dynamic.d_max, dynamic.tau) == (2, 0.25)
    assert dynamic.d_base <= 2


@pytest.mark.parametrize("method", ["dynamic", "linear", "fixed"])
def test_a_depth_of_nothing_drafts_nothing(method: str) -> None:
    rules = {"dynamic": dynamic_rules, "linear": linear_rules, "fixed": fixed_rules}[method]
    drafter = drafter_of(rules(SpeculationParams(method=method, max_depth=0)))
    assert tree_of(drafter, chain_law(0.9)).num_drafted == 0


def test_a_tree_is_proposed_once() -> None:
    drafter = drafter_of(OPEN)
    assert tree_of(drafter, chain_law(0.9)).num_drafted > 0
    assert drafter.propose(DraftBudget(64)).num_drafted == 0


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("seed", range(6))
def test_random_trees_keep_every_promise(seed: int, temperature: float) -> None:
    """`tree_of` checks the budget, the rows and the tree; here rules and limits are drawn."""
    random = np.random.default_rng(seed)
    num_drafted = 0
    for number in range(25):
        rules = Rules(
            b_min=int(random.integers(1, 3)),
            b_mid=int(random.integers(1, 5)),
            b_max=int(random.integers(5, WIDTH + 1)),
            tau_high=random.random(),
            tau_low=random.random() / 2,
            d_base=int(random.integers(0, 6)),
            d_max=int(random.integers(0, 9)),
            rho_stop=random.random() / 4,
            rho_deep=random.random(),
            tau=random.random() / 20,
        )
        drafter = drafter_of(rules, HISTORY, temperature)
        for _ in range(4):
            budget, most_rows = int(random.integers(0, 50)), int(random.integers(0, 50))
            draft_budget = DraftBudget(budget, NodePrice(random.random() / 20), random.random() / 5)
            tree = tree_of(drafter, random_law(1000 * seed + number), draft_budget, min(most_rows, budget))
            assert depth_of(tree) <= rules.d_max
            assert tree.tokens.max() < VOCAB
            num_drafted += tree.num_drafted
            verify(drafter, tree, bool(random.integers(0, 2)))
    assert num_drafted > 200
