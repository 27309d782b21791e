"""The registry of drafting methods: their names, what they are, and how one starts for a request.

Knows what a request may ask of each; the engine knows only the `Drafter` protocol.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from decoding.cache.kv_store import KvStore
from decoding.core.request import Request
from decoding.core.sampling_params import SamplingParams
from decoding.core.speculation_params import TRACE_STEPS, TRACE_TREES, SpeculationParams
from decoding.core.top_tokens import TopTokens
from decoding.core.tree import Source, root_only
from decoding.costs.price import DraftBudget
from decoding.drafting.baselines.isotropic import IsotropicDrafter
from decoding.drafting.baselines.lookup import LookupDrafter
from decoding.drafting.baselines.none import NoDrafter
from decoding.drafting.baselines.recycle import RecycleDrafter
from decoding.drafting.baselines.suffix import SuffixDrafter
from decoding.drafting.draft_model import dynamic
from decoding.drafting.draft_model.dynamic import History, ModelDrafter, dynamic_rules, fixed_rules, linear_rules
from decoding.drafting.draft_model.growth import Rules
from decoding.drafting.draft_model.state import DraftModelState
from decoding.drafting.drafter import Drafter
from decoding.drafting.eagle.eagle_tree import NUM_NODES, eagle_rules
from decoding.drafting.fields import check_field, one_of
from decoding.drafting.one_tree.one_tree import FAMILIES, OneTree
from decoding.drafting.sources import DraftingStores, Sources
from decoding.drafting.spine import spine
from decoding.drafting.spine.spine import SpineDrafter
from decoding.drafting.stand import stand
from decoding.drafting.stand.stand import StandDrafter
from decoding.sampling.sampler import verdict_on
from decoding.stores.session import lone_session
from decoding.stores.successor_table import NUM_SUCCESSORS

__all__ = [
    "AUTO",
    "METHODS",
    "PLAIN",
    "Drafter",
    "Method",
    "StartDrafter",
    "TopTokens",
    "available",
    "check",
    "start",
    "warm_up",
]


StartDrafter = Callable[[Request, Sources], Drafter]  # makes one request's drafter


@dataclass(frozen=True, slots=True)
class Method:
    """A registered method: `start` makes one request's drafter from the request and what it may draw on.

    default_nodes: the budget of a request that names none; None where the drafter itself weighs each node's
    chance against its price. runs_draft_model: whether it drafts with the draft model where there is one.
    """

    start: StartDrafter
    summary: str
    default_nodes: int | None
    needs_draft_model: bool = False
    runs_draft_model: bool = False


def _of_stores(new: Callable[[Request, DraftingStores], Drafter]) -> StartDrafter:
    return lambda request, sources: new(request, sources.stores)


def _spine(request: Request, sources: Sources) -> Drafter:
    if request.speculation.without:
        return SpineDrafter(request, sources.stores)
    return OneTree(request, sources, SPINE)


def _stand(request: Request, sources: Sources) -> Drafter:
    speculation = request.speculation
    is_coupled = speculation.candidates in (None, "coupled") and speculation.verification == stand.MATCH
    if speculation.without or sources.tree is not None or not is_coupled:
        return StandDrafter(request, sources.stores, sources.tree)
    return OneTree(request, sources, STAND)


def _dynamic(request: Request, sources: Sources) -> Drafter:
    if request.speculation.without:
        return _of_model(dynamic_rules, History())(request, sources)
    return OneTree(request, sources, DYNAMIC)


def _of_model(rules: Callable[[SpeculationParams], Rules], history: History | None = None) -> StartDrafter:
    def start(request: Request, sources: Sources) -> Drafter:
        assert sources.state is not None
        own_history = None if "history" in request.speculation.without else history
        return ModelDrafter(request, sources.state, rules(request.speculation), own_history)

    return start


AUTO, PLAIN = "auto", "none"
BEST_FIRST = "best_first"  # left out, a method draws its paper's own shape
SPINE = frozenset((Source.CONTEXT, Source.ADJACENCY))
STAND = frozenset((Source.ADJACENCY, Source.NGRAM))
DYNAMIC = frozenset((Source.DRAFT_MODEL,))
WARM_UP_VOCABULARY = 1024
WARM_UP_BYTES = 2**16  # of a session small enough to grow while warming up
GROWN = (AUTO, "spine", "stand", "dynamic")  # by the one grower

METHODS: dict[str, Method] = {
    AUTO: Method(OneTree, "one tree from every source, as large as its nodes are worth", None, runs_draft_model=True),
    "spine": Method(_spine, "spine trees (GOOSE): a chain copied from context, branches of successors", None),
    "stand": Method(_stand, "STAND: n-grams of all the session's trajectories, drawn with your own noise", None),
    "dynamic": Method(
        _dynamic,
        "DynaTree: a draft model's tree, as wide and deep as it is sure of itself",
        None,
        needs_draft_model=True,
        runs_draft_model=True,
    ),
    "fixed": Method(
        _of_model(fixed_rules),
        "a draft model's tree of fixed depth and `branching`",
        60,
        needs_draft_model=True,
        runs_draft_model=True,
    ),
    "linear": Method(
        _of_model(linear_rules),
        "a draft model's chain of `max_depth` tokens",
        60,
        needs_draft_model=True,
        runs_draft_model=True,
    ),
    "eagle": Method(
        _of_model(eagle_rules),
        "EAGLE-2's tree over a head or draft model: ten nodes of a depth grow on, the 60 likeliest stay",
        NUM_NODES,
        needs_draft_model=True,
        runs_draft_model=True,
    ),
    "recycle": Method(_of_stores(RecycleDrafter), "Token Recycling: a fixed 80-node tree of successors last seen", 80),
    "isotropic": Method(
        _of_stores(IsotropicDrafter), "a uniform tree of `branching` adjacency successors per node", 60
    ),
    "suffix": Method(
        _of_stores(SuffixDrafter), "SuffixDecoding: what followed the longest matches, in this and earlier replies", 64
    ),
    "lookup": Method(lambda request, _: LookupDrafter(request), "prompt lookup: a chain copied from context", 10),
    PLAIN: Method(lambda request, _: NoDrafter(request), "plain decoding, nothing drafted", 0),
}


def available(has_draft_model: bool) -> list[str]:
    """The methods that can be had with or without a draft model."""
    return [name for name, method in METHODS.items() if has_draft_model or not method.needs_draft_model]


def start(method: str, request: Request, stores: DraftingStores, state: DraftModelState | None = None) -> Drafter:
    """A new drafter of a registered `method` for one request."""
    return METHODS[method].start(request, Sources(stores, state))


def check(speculation: SpeculationParams) -> None:
    """Raise RequestRejected naming the first field that no method honours, with what is accepted."""
    check_field("method", speculation.method in METHODS, one_of(*METHODS), speculation.method)
    parts = sorted({BEST_FIRST, *spine.ABLATIONS, *dynamic.ABLATIONS})
    unknown = ", ".join(sorted(speculation.without.difference(parts)))
    check_field("without", not unknown, f"any of {', '.join(parts)}", unknown)
    branching = speculation.branching
    check_field("branching", 1 <= branching <= NUM_SUCCESSORS, f"1 to {NUM_SUCCESSORS}", branching)
    consensus = speculation.consensus
    check_field("consensus", consensus in spine.CONSENSUS, one_of(*spine.CONSENSUS), consensus)
    stand.check(speculation)
    _check_sources(speculation)
    least = speculation.min_probability
    check_field("min_probability", least is None or 0 <= least < 1, "at least 0 and below 1", least)
    trace = speculation.trace
    check_field("trace", trace in (None, TRACE_STEPS, TRACE_TREES), one_of(TRACE_STEPS, TRACE_TREES), trace)
    for name, value in (("max_nodes", speculation.max_nodes), ("max_depth", speculation.max_depth)):
        check_field(name, value is None or value >= 0, "0 or more", value)


def _check_sources(speculation: SpeculationParams) -> None:
    """Raise RequestRejected for a source that there is not, and where no tree is grown from sources."""
    if speculation.sources is None:
        return
    names = [source.name.lower() for source in (*FAMILIES, Source.PREDICTION, Source.GRAMMAR)]
    unknown = ", ".join(sorted(speculation.sources.difference(names)))
    check_field("sources", not unknown, f"any of {', '.join(sorted(names))}", unknown)
    is_grown = speculation.method in GROWN and not speculation.without
    check_field("sources", is_grown, f"left out where the method is not {one_of(*GROWN)}", "a list")


def warm_up(method: str) -> None:
    """Compile all that serving a method calls, by drafting a text that repeats itself after all tables have grown.

    Cached on disk between starts.
    """
    tokens = np.concatenate((np.arange(600, dtype=np.int32), np.tile(np.arange(7, dtype=np.int32), 6)))
    sampling = SamplingParams(max_tokens=8, temperature=1.0)
    for speculation in _ways_to_ask(method):
        for has_model in _may_have_model(METHODS[method]):
            request = Request(id=f"warm-up-{method}", prompt=tokens, sampling=sampling, speculation=speculation)
            store = KvStore((), 1, torch.float32, torch.device("cpu"))
            state = DraftModelState(request, store, WARM_UP_VOCABULARY) if has_model else None
            _draft_once(start(method, request, lone_session(WARM_UP_BYTES), state), request, state)


def _ways_to_ask(method: str) -> list[SpeculationParams]:
    """For all that a method may call."""
    ways = [SpeculationParams(method=method)]
    if method in GROWN:
        ways.append(SpeculationParams(method=method, without=frozenset((BEST_FIRST,))))
    if method == "stand":
        ways.append(SpeculationParams(method=method, verification="rejection"))
    return ways


def _may_have_model(method: Method) -> tuple[bool, ...]:
    """Whether a draft model takes part, each way that there is."""
    if method.needs_draft_model:
        return (True,)
    return (False, True) if method.runs_draft_model else (False,)


def _draft_once(drafter: Drafter, request: Request, state: DraftModelState | None) -> None:
    """A step as the engine does it, on made-up numbers."""
    drafter.observe_prefill(0, _made_up_top(request.num_tokens))
    budget = DraftBudget(12)
    if state is not None:
        assert state.grower is not None
        state.grower.wants_model(DraftBudget(12, round_price=1.0))  # which is too dear
        state.grower.begin(budget, 12, 8)
        num_rows = 1
        while (asked := state.grower.grow(_made_up_top(num_rows))) is not None:
            num_rows = len(asked.tokens)
    tree = drafter.propose(budget)
    logits_RV = torch.zeros(len(tree), WARM_UP_VOCABULARY)
    verdict = verdict_on(tree, logits_RV, request, None)
    request.extend(verdict.tokens[:1])
    drafter.observe(tree, verdict, _made_up_top(len(tree)))
    root = root_only(int(request.tokens[-1]))
    verdict = verdict_on(root, logits_RV[:1], request, None)
    request.extend(verdict.tokens)
    drafter.observe(root, verdict, _made_up_top(1))  # a step without a tree of its own
    drafter.propose(budget)


def _made_up_top(num_rows: int) -> TopTokens:
    top_ids = np.tile(np.arange(NUM_SUCCESSORS, dtype=np.int32), (num_rows, 1))
    return TopTokens(top_ids, np.full(top_ids.shape, 0.1, np.float32))
