"""The registry of drafting methods: their names, what they are, and how one starts for a request.

Knows what a request may ask of each; the engine knows only the `Drafter` protocol.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Literal

import numpy as np
import torch

from decoding.cache.kv_store import KvStore
from decoding.core.request import Request
from decoding.core.sampling_params import SamplingParams
from decoding.core.speculation_params import TRACE_STEPS, TRACE_TREES, SpeculationParams
from decoding.core.top_tokens import TopTokens
from decoding.core.tree import DraftTree, Source, root_only
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
from decoding.drafting.one_tree.one_tree import FAMILIES, OneTree
from decoding.drafting.sources import Sources
from decoding.drafting.spine import spine
from decoding.drafting.spine.spine import SpineDrafter
from decoding.drafting.stand.stand import MATCH, REJECTION, StandDrafter
from decoding.drafting.tree.candidates import CANDIDATES
from decoding.errors import RequestRejected
from decoding.sampling.sampler import verdict_on
from decoding.stores.session import Session, lone_session
from decoding.stores.successor_table import NUM_SUCCESSORS

StartDrafter = Callable[[Request, Sources], Drafter]  # makes one request's drafter


@dataclass(frozen=True, slots=True)
class Method:
    """A registered method: `start` makes one request's drafter from the request and what it may draw on.

    default_nodes: the budget of a request that names none; None where the drafter itself weighs each node's
    chance against its price. draft_model: "optional" where it drafts with one if there is one.
    """

    start: StartDrafter
    default_nodes: int | None = None
    draft_model: Literal["unused", "optional", "needed"] = "unused"


def _spine(request: Request, sources: Sources) -> Drafter:
    if request.speculation.without:
        return SpineDrafter(request, sources.stores)
    return OneTree(request, sources, SPINE)


def _stand(request: Request, sources: Sources) -> Drafter:
    speculation = request.speculation
    is_coupled = speculation.candidates in (None, "coupled") and speculation.verification == MATCH
    if speculation.without or sources.tree is not None or not is_coupled:
        return StandDrafter(request, sources.stores, sources.tree)
    return OneTree(request, sources, STAND)


def _dynamic(request: Request, sources: Sources) -> Drafter:
    if request.speculation.without:
        history = None if "history" in request.speculation.without else History()
        return _by_rules(dynamic_rules, history)(request, sources)
    return OneTree(request, sources, DYNAMIC)


def _by_rules(rules: Callable[[SpeculationParams], Rules], history: History | None = None) -> StartDrafter:
    def start(request: Request, sources: Sources) -> Drafter:
        assert sources.state is not None
        return ModelDrafter(request, sources.state, rules(request.speculation), history)

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
    AUTO: Method(OneTree, draft_model="optional"),
    "spine": Method(_spine),
    "stand": Method(_stand),
    "dynamic": Method(_dynamic, draft_model="needed"),
    "fixed": Method(_by_rules(fixed_rules), 60, "needed"),
    "linear": Method(_by_rules(linear_rules), 60, "needed"),
    "eagle": Method(_by_rules(eagle_rules), NUM_NODES, "needed"),
    "recycle": Method(lambda request, sources: RecycleDrafter(request, sources.stores), 80),
    "isotropic": Method(lambda request, sources: IsotropicDrafter(request, sources.stores), 60),
    "suffix": Method(lambda request, sources: SuffixDrafter(request, sources.stores), 64),
    "lookup": Method(lambda request, _: LookupDrafter(request), 10),
    PLAIN: Method(lambda request, _: NoDrafter(request), 0),
}


def available(has_draft_model: bool) -> list[str]:
    """The methods that can be had with or without a draft model."""
    return [name for name, method in METHODS.items() if has_draft_model or method.draft_model != "needed"]


def start(method: str, request: Request, stores: Session, state: DraftModelState | None = None) -> Drafter:
    """A new drafter of a registered `method` for one request."""
    return METHODS[method].start(request, Sources(stores, state))


def check(asked: SpeculationParams) -> None:
    """Raise RequestRejected naming the first field that no method honours, with what is accepted."""
    for name, is_honoured, expected, value in _fields(asked):
        if not is_honoured:
            param = f"speculation.{name}"
            raise RequestRejected(f"{param} must be {expected}, got {value}", param=param)


def _fields(asked: SpeculationParams) -> Iterator[tuple[str, bool, str, object]]:
    """What is asked of each field: its name, whether some method honours it, what may stand there, what does."""
    yield "method", asked.method in METHODS, _one_of(*METHODS), asked.method
    yield "without", *_all_among(asked.without, {BEST_FIRST, *spine.ABLATIONS, *dynamic.ABLATIONS})
    yield "branching", 1 <= asked.branching <= NUM_SUCCESSORS, f"1 to {NUM_SUCCESSORS}", asked.branching
    yield "consensus", asked.consensus in spine.CONSENSUS, _one_of(*spine.CONSENSUS), asked.consensus
    is_match, verification = asked.verification == MATCH, asked.verification
    yield "verification", verification in (MATCH, REJECTION), _one_of(MATCH, REJECTION), verification
    is_fit = is_match or asked.method == "stand"
    yield "verification", is_fit, f"{MATCH} where the method is not stand", verification
    yield "candidates", asked.candidates in (None, *CANDIDATES), _one_of(*CANDIDATES), asked.candidates
    is_fit = is_match or asked.candidates in (None, "independent")
    yield "candidates", is_fit, f"independent where verification is {REJECTION}", asked.candidates
    if asked.sources is not None:
        names = {source.name.lower() for source in (*FAMILIES, Source.PREDICTION, Source.GRAMMAR)}
        yield "sources", *_all_among(asked.sources, names)
        is_grown = asked.method in GROWN and not asked.without
        yield "sources", is_grown, f"left out where the method is not {_one_of(*GROWN)}", "a list"
    least = asked.min_probability
    yield "min_probability", least is None or 0 <= least < 1, "at least 0 and below 1", least
    traces = (TRACE_STEPS, TRACE_TREES)
    yield "trace", asked.trace in (None, *traces), _one_of(*traces), asked.trace
    for name, value in (("max_nodes", asked.max_nodes), ("max_depth", asked.max_depth)):
        yield name, value is None or value >= 0, "0 or more", value


def _one_of(*names: str) -> str:
    return f"one of {', '.join(names)}"


def _all_among(given: frozenset[str], known: set[str]) -> tuple[bool, str, str]:
    """Of a field that takes several names, as in `_fields`."""
    unknown = ", ".join(sorted(given - known))
    return not unknown, f"any of {', '.join(sorted(known))}", unknown


def warm_up(name: str) -> None:
    """Compile all that serving a method calls, by drafting a text that repeats itself after all tables have grown.

    Cached on disk between starts.
    """
    tokens = np.concatenate((np.arange(600, dtype=np.int32), np.tile(np.arange(7, dtype=np.int32), 6)))
    sampling, ways = SamplingParams(max_tokens=8, temperature=1.0), [SpeculationParams(method=name)]
    if name in GROWN:
        ways.append(SpeculationParams(method=name, without=frozenset((BEST_FIRST,))))
    if name == "stand":
        ways.append(SpeculationParams(method=name, verification=REJECTION))
    has_model = {"unused": (False,), "optional": (False, True), "needed": (True,)}[METHODS[name].draft_model]
    for speculation, runs_model in product(ways, has_model):
        request = Request(id=f"warm-up-{name}", prompt=tokens, sampling=sampling, speculation=speculation)
        store = KvStore((), 1, torch.float32, torch.device("cpu"))
        state = DraftModelState(request, store, WARM_UP_VOCABULARY) if runs_model else None
        _draft_once(start(name, request, lone_session(WARM_UP_BYTES), state), request, state)


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
    _verify(drafter, drafter.propose(budget), request)
    _verify(drafter, root_only(int(request.tokens[-1])), request)  # a step without a tree of its own
    drafter.propose(budget)


def _verify(drafter: Drafter, tree: DraftTree, request: Request) -> None:
    verdict = verdict_on(tree, torch.zeros(len(tree), WARM_UP_VOCABULARY), request, None)
    request.extend(verdict.tokens[:1])
    drafter.observe(tree, verdict, _made_up_top(len(tree)))


def _made_up_top(num_rows: int) -> TopTokens:
    top_ids = np.tile(np.arange(NUM_SUCCESSORS, dtype=np.int32), (num_rows, 1))
    return TopTokens(top_ids, np.full(top_ids.shape, 0.1, np.float32))
