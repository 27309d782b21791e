"""The registry of drafting methods: their names, what they are, and how one starts for a request.

Knows what a request may ask of each; the engine knows only the `Drafter` protocol.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from decoding.drafters.base import Drafter, TopTokens
from decoding.drafters.lookup import LookupDrafter
from decoding.drafters.none import NoDrafter
from decoding.drafters.spine import SpineDrafter
from decoding.errors import RequestRejected
from decoding.request import Request, SpeculationParams
from decoding.stores import DraftingStores

__all__ = ["METHODS", "Drafter", "Method", "TopTokens", "check", "resolve", "start", "warm_up"]

AUTO = "auto"
ABLATIONS = ("branches", "bigram", "bypass", "context_match")
CONSENSUS = ("lengths", "occurrences")
MAX_BRANCHING = 10


@dataclass(frozen=True, slots=True)
class Method:
    """A registered method: `start` makes one request's drafter from the request and its session."""

    start: Callable[[Request, DraftingStores], Drafter]
    summary: str


METHODS: dict[str, Method] = {
    "spine": Method(SpineDrafter, "spine trees: context matches with adjacency branches"),
    "none": Method(lambda request, _: NoDrafter(request), "plain decoding, nothing drafted"),
    "lookup": Method(
        lambda request, _: LookupDrafter(request), "prompt lookup: a chain copied from an earlier occurrence"
    ),
}


def resolve(method: str) -> tuple[str, str]:
    """The registered name behind `method`, and why it was chosen."""
    if method == AUTO:
        return (
            "spine" if "spine" in METHODS else "lookup",
            "auto: the strongest method that needs no draft model",
        )
    return method, "requested"


def start(method: str, request: Request, session: DraftingStores) -> Drafter:
    """A new drafter of `method` (a registered name or "auto") for one request."""
    return METHODS[resolve(method)[0]].start(request, session)


def check(speculation: SpeculationParams) -> None:
    """Raise RequestRejected naming the first field that no method honours, with what is accepted."""
    methods = (AUTO, *METHODS)
    _check_field("method", speculation.method in methods, f"one of {', '.join(methods)}", speculation.method)
    unknown = sorted(speculation.without - set(ABLATIONS))
    _check_field("without", not unknown, f"some of {', '.join(ABLATIONS)}", ", ".join(unknown))
    _check_field(
        "branching",
        1 <= speculation.branching <= MAX_BRANCHING,
        f"1 to {MAX_BRANCHING}",
        speculation.branching,
    )
    _check_field(
        "consensus",
        speculation.consensus in CONSENSUS,
        f"one of {', '.join(CONSENSUS)}",
        speculation.consensus,
    )
    max_nodes, max_depth = speculation.max_nodes, speculation.max_depth
    _check_field("max_nodes", max_nodes is None or max_nodes >= 0, "0 or more", max_nodes)
    _check_field("max_depth", max_depth is None or max_depth >= 0, "0 or more", max_depth)


def _check_field(name: str, is_valid: bool, expected: str, value: object) -> None:
    if not is_valid:
        raise RequestRejected(f"speculation.{name} must be {expected}, got {value}", f"speculation.{name}")


def warm_up() -> None:
    """Compile everything the serving path calls; the compiled code is cached on disk."""
