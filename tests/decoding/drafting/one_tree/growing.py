"""Small sessions, scripted targets and draft models for trees that grow from every source."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from decoding.cache.kv_store import KvStore
from decoding.core.request import Request
from decoding.core.sampling_params import SamplingParams
from decoding.core.speculation_params import SpeculationParams
from decoding.core.top_tokens import TopTokens
from decoding.core.tree import DraftTree, Source
from decoding.costs.price import DraftBudget, NodePrice
from decoding.drafting.draft_model.state import DraftModelState
from decoding.drafting.grammar import TreeGrammar
from decoding.drafting.one_tree.one_tree import FAMILIES, OneTree
from decoding.drafting.one_tree.prediction import Prediction
from decoding.drafting.sources import Sources
from decoding.sampling.verify import walk
from decoding.stores.acceptance_model import AcceptanceModel, unmeasured_model
from decoding.stores.session import Session

WIDTH = 10
SHARED_VOCAB = 100
Law = Callable[[tuple[int, ...]], dict[int, float]]  # what a draft model says after a path from the root
NextToken = Callable[[int], int]  # what a target says after a token


def new_session(models: tuple[AcceptanceModel, AcceptanceModel] | None = None) -> Session:
    """A session whose server knows no more than what classes of evidence mean."""
    return Session("", "test", 2**20, models or (unmeasured_model(), unmeasured_model()))


def request_of(prompt: Sequence[int], temperature: float = 0.0, seed: int = 7, **speculation: object) -> Request:
    if "sources" in speculation:
        speculation["sources"] = frozenset(speculation["sources"])  # type: ignore[arg-type, call-overload]
    return Request(
        id="test",
        prompt=np.array(prompt, np.int32),
        sampling=SamplingParams(max_tokens=2000, temperature=temperature, seed=seed),
        speculation=SpeculationParams(**speculation),  # type: ignore[arg-type]
    )


def teach(session: Session, laws: dict[tuple[int, ...], dict[int, float]]) -> None:
    """Tell the n-gram store what follows each of these last tokens, and all their shorter ends."""
    for context, law in laws.items():
        padded = np.array([[-1] * (4 - len(context)) + list(context)], np.int32)
        ids, weights = np.array([list(law)], np.int32), np.array([list(law.values())], np.float32)
        session.ngrams.harvest(padded, ids, weights)


def no_layers() -> KvStore:
    """Of a draft model that has nothing to keep."""
    return KvStore([], 1, torch.float32, torch.device("cpu"))


def drafter_of(
    session: Session,
    request: Request,
    families: frozenset[Source] = FAMILIES,
    has_model: bool = False,
    block_len: int = 1,
    prediction: Prediction | None = None,
    grammar: TreeGrammar | None = None,
) -> OneTree:
    """has_model: whether there is a draft model, by itself one that runs a row for each node."""
    state = None
    if has_model:
        state = DraftModelState(request, no_layers(), SHARED_VOCAB, block_len == 1, block_len, block_len > 1)
    return OneTree(request, Sources(session, state, prediction=prediction, grammar=grammar), families)


def tops_of(law: Law, paths: Sequence[tuple[int, ...]]) -> TopTokens:
    ids, probabilities = np.zeros((len(paths), WIDTH), np.int32), np.zeros((len(paths), WIDTH), np.float32)
    for row, path in enumerate(paths):
        ranked = sorted(law(path).items(), key=lambda item: -item[1])
        for slot, (token, probability) in enumerate(ranked):
            ids[row, slot], probabilities[row, slot] = token, probability
    return TopTokens(ids, probabilities)


def grow(
    drafter: OneTree, law: Law, budget: DraftBudget, most_rows: int = 64, most_depth: int = 64
) -> tuple[DraftTree, list[int]]:
    """The tree of a step in which the draft model is up to date, and how many rows each of its rounds had."""
    drafter.begin(budget, most_rows, most_depth)
    paths: list[tuple[int, ...]] = []
    wanted: list[tuple[int, ...]] = [()]
    rounds = []
    while (asked := drafter.grow(tops_of(law, wanted))) is not None:
        for token, parent in zip(asked.tokens.tolist(), asked.parents[len(paths) :].tolist(), strict=True):
            paths.append((*(paths[parent] if parent >= 0 else ()), token))
        wanted = paths[-len(asked.tokens) :]
        assert len(paths) == len(asked.parents) == len(set(paths)) <= most_rows
        rounds.append(len(wanted))
    tree = drafter.propose(budget)
    tree.check_integrity()
    return tree, rounds


def verify(drafter: OneTree, request: Request, tree: DraftTree, following: NextToken, teaches: bool = False) -> int:
    """Let a target that looks at the last token alone verify a tree; how many nodes it accepted."""
    chosen = np.array([following(int(token)) for token in tree.tokens], np.int32)
    verdict = walk(tree, chosen)
    request.extend(verdict.tokens)
    top = TopTokens(chosen[:, None].copy(), np.full((len(tree), 1), 0.9, np.float32)) if teaches else None
    drafter.observe(tree, verdict, top)
    return verdict.num_accepted


def paths_of(tree: DraftTree) -> list[tuple[int, ...]]:
    """The tokens from the root's children down to every drafted node."""
    paths: list[tuple[int, ...]] = [()]
    for token, parent in zip(tree.tokens[1:].tolist(), tree.parents[1:].tolist(), strict=True):
        paths.append((*paths[parent], token))
    return paths[1:]


def names_of(tree: DraftTree) -> dict[tuple[int, ...], set[Source]]:
    """Which sources named each drafted node."""
    return {path: set(tree.named_by(node)) for node, path in enumerate(paths_of(tree), 1)}


def chance_of(session: Session, request: Request, token: int) -> float:
    """How likely a tree's drafter thinks `token` after the root: the highest price at which it is drafted."""
    low, high = 0.0, 1.0
    for _ in range(16):
        middle = (low + high) / 2
        is_drafted = (token,) in paths_of(drafter_of(session, request).propose(DraftBudget(64, NodePrice(middle))))
        low, high = (middle, high) if is_drafted else (low, middle)
    return low
