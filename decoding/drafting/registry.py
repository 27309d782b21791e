"""The registry of drafting methods: their names, what they are, and how one starts for a request.

Knows what a request may ask of each; the engine knows only the `Drafter` protocol.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from decoding.core.request import Request
from decoding.core.speculation_params import TRACE_STEPS, TRACE_TREES, SpeculationParams
from decoding.core.tree import Source
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
from decoding.stores.session import Session
from decoding.stores.successor_table import NUM_SUCCESSORS

StartDrafter = Callable[[Request, Sources], Drafter]  # makes one request's drafter


@dataclass(frozen=True, slots=True)
class Method:
    """A registered method: `start` makes one request's drafter from the request and what it may draw on.

    most_nodes: of a tree whose request names no budget, as far as the reply's credit allows; None where the drafter
    itself weighs each node's chance against its price. draft_model: "optional" where it drafts with one if there is
    one.
    """

    start: StartDrafter
    most_nodes: int | None = None
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
    "isotropic": Method(lambda request, sources: IsotropicDrafter(request, sources.stores.ngrams), 60),
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
