"""The contenders that STAND is compared with: other methods, ways of drawing, trees and stores.

Owns the experiments' own drafters, which differ from `StandDrafter` in what they teach the store.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from decoding.bench.stand.trajectories import Contender
from decoding.core.request import Request
from decoding.core.speculation_params import SpeculationParams
from decoding.core.top_tokens import TopTokens
from decoding.core.tree import DraftTree, Verdict
from decoding.drafting.stand.stand import StandDrafter
from decoding.drafting.stand.static_tree import StaticTree, shipped_tree
from decoding.stores.ngram import contexts_of
from decoding.stores.session import Session, lone_session

STAND = "stand"
STORE_BYTES = 16 * 2**20
SMALL_STORES = (2**20, 2**18, 2**16)


class AcceptedOnly(StandDrafter):
    """Learns from the nodes of the accepted path only."""

    def observe(self, tree: DraftTree, verdict: Verdict, top: TopTokens | None) -> None:
        if top is None:
            return
        path = verdict.path
        contexts = contexts_of(self._request.tokens[: self._num_tokens], tree.tokens, tree.parents)[path]
        self._ngrams.harvest(contexts, top.ids[path], top.probabilities[path])


class AllAlike(StandDrafter):
    """Averages rejected nodes into the store like accepted ones."""

    def observe(self, tree: DraftTree, verdict: Verdict, top: TopTokens | None) -> None:  # noqa: ARG002
        if top is None:
            return
        contexts = contexts_of(self._request.tokens[: self._num_tokens], tree.tokens, tree.parents)
        self._ngrams.harvest(contexts, top.ids, top.probabilities)


class AsSampled(StandDrafter):
    """Stores probabilities at the request's temperature instead of 1, and does not apply the temperature again."""

    def __init__(self, request: Request, session: Session, tree: StaticTree | None = None) -> None:
        super().__init__(request, session, tree)
        self._exponent = 1.0 / request.sampling.temperature
        self._law = self._law._replace(temperature=1.0)

    def observe_prefill(self, start: int, top: TopTokens | None) -> None:
        super().observe_prefill(start, self._tempered(top))

    def observe(self, tree: DraftTree, verdict: Verdict, top: TopTokens | None) -> None:
        super().observe(tree, verdict, self._tempered(top))

    def _tempered(self, top: TopTokens | None) -> TopTokens | None:
        if top is None:
            return None
        powers = top.probabilities.astype(np.float64) ** self._exponent
        return TopTokens(top.ids, (powers / powers.sum(axis=1, keepdims=True)).astype(np.float32))


def stand(nodes: int, *without: str, candidates: str | None = None, verification: str = "match") -> SpeculationParams:
    parts = frozenset(without)
    return SpeculationParams(
        method=STAND, max_nodes=nodes, without=parts, candidates=candidates, verification=verification
    )


def method_contenders(nodes: int) -> list[Contender]:
    """STAND and the other methods at equal budget, STAND with a cold store, and at the budget that the server
    chooses."""

    def of(label: str, method: str, budget: int | None, is_cold: bool = False) -> Contender:
        return Contender(label=label, speculation=SpeculationParams(method=method, max_nodes=budget), is_cold=is_cold)

    return [
        of("none", "none", 0),
        of(f"lookup, {nodes}", "lookup", nodes),
        of(f"recycle, {nodes}", "recycle", nodes),
        of(f"spine, {nodes}", "spine", nodes),
        of(f"stand, {nodes}", STAND, nodes),
        of(f"stand, {nodes}, cold store", STAND, nodes, is_cold=True),
        of(f"recycle, {nodes}, cold store", "recycle", nodes, is_cold=True),
        of("spine, own budget", "spine", None),
        of("stand, own budget", STAND, None),
        of("auto", "auto", None),
    ]


def drawing_contenders(nodes: int) -> list[Contender]:
    """Deterministic, independent, coupled and rejection on the paper's static tree; then coupled, grown best-first."""
    found = [Contender(label="none", speculation=SpeculationParams(method="none", max_nodes=0))]
    for candidates in ("deterministic", "independent", "coupled"):
        speculation = stand(nodes, "best_first", candidates=candidates)
        found.append(Contender(label=f"{candidates}, static tree", speculation=speculation))
    found.append(Contender(label="rejection, static tree", speculation=stand(nodes, verification="rejection")))
    return [*found, Contender(label="coupled, best first", speculation=stand(nodes))]


def tree_contenders(nodes: int) -> list[Contender]:
    """The heuristic tree, the tuned one, and no static tree at all."""
    found = []
    for name, label in (("general", "heuristic tree"), ("gosling", "tuned tree")):
        tree = shipped_tree(name)
        found.append(
            Contender(
                label=label,
                speculation=stand(nodes, "best_first"),
                drafter=lambda request, stores, tree=tree: StandDrafter(request, stores, tree),  # type: ignore[misc]
                new_stores=lambda: lone_session(STORE_BYTES),
            )
        )
    return [*found, Contender(label="best first", speculation=stand(nodes))]


def store_contenders(nodes: int, temperature: float) -> Sequence[Contender]:
    """The store with one design choice changed at a time, and smaller stores."""
    base = Contender(
        label="temperature 1, rejected rows for unknown 4-grams",
        speculation=stand(nodes),
        drafter=StandDrafter,
        new_stores=lambda: lone_session(STORE_BYTES),
    )
    return [
        base,
        replace(base, label=f"kept as sampled, at {temperature:g}", drafter=AsSampled),
        replace(base, label="all rows alike", drafter=AllAlike),
        replace(base, label="accepted rows only", drafter=AcceptedOnly),
        *(
            replace(base, label=f"store of {size // 1024} KiB", new_stores=lambda size=size: lone_session(size))  # type: ignore[misc]
            for size in SMALL_STORES
        ),
    ]
