"""Both ways of verification give the target's own law through a multi-level tree, adaptive store and all."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy import stats

from decoding.core.request import Request
from decoding.core.sampling_params import SamplingParams
from decoding.core.speculation_params import SpeculationParams
from decoding.core.tree import DraftTree, Draws
from decoding.costs.price import DraftBudget, NodePrice
from decoding.drafting.registry import check
from decoding.drafting.stand.stand import StandDrafter
from decoding.drafting.stand.static_tree import StaticTree
from decoding.errors import RequestRejected
from decoding.sampling.law import law_of
from decoding.sampling.rejection import RejectionSampler, target_law
from decoding.sampling.sampler import sampler_for
from decoding.sampling.top_tokens import top_tokens
from decoding.sampling.verify import verify
from decoding.stores.session import Session, lone_session

VOCAB = 7
NUM_DRAWN = 3
TRIALS = 6000
PROMPT = np.array([1, 2], np.int32)
TREE = StaticTree(made={}, parents=[-1, 0, 0, 1, 0, 1, 2, 3, 3], ranks=[0, 0, 1, 0, 2, 1, 0, 0, 1])
LAWS = [
    SamplingParams(max_tokens=8, temperature=1.0),
    SamplingParams(max_tokens=8, temperature=0.6),
    SamplingParams(max_tokens=8, temperature=1.0, top_p=0.8),
    SamplingParams(max_tokens=8, temperature=1.3, top_k=3),
    SamplingParams(max_tokens=8, temperature=0.7, top_p=0.95, min_p=0.05),
]
# float32 [V, V]: the pretended target's logits after each token
LOGITS_VV = torch.tensor(np.random.default_rng(0).normal(0, 1.2, (VOCAB, VOCAB)), dtype=torch.float32)


def processed(law: SamplingParams) -> NDArray[np.float64]:
    """float64 [V, V]: the target's law after each token, in plain numpy."""
    laws = []
    for row in LOGITS_VV.numpy().astype(np.float64):
        p = np.exp((row - row.max()) / law.temperature)
        ranks = np.argsort(np.argsort(-p))
        if law.top_k:
            p[ranks >= law.top_k] = 0
        before = np.array([p[p > value].sum() for value in p])
        if law.top_p < 1:
            p[before >= law.top_p * p.sum()] = 0
        p[p < law.min_p * p.max()] = 0
        laws.append(p / p.sum())
    return np.array(laws)


def draw(law: SamplingParams, speculation: SpeculationParams, seed: int, session: Session) -> tuple[list[int], int]:
    """A few tokens of a reply, drafted from the session and harvested into it; and how many were accepted."""
    request = Request(id="chi", prompt=PROMPT, sampling=replace(law, seed=seed), speculation=speculation)
    drafter = StandDrafter(request, session, TREE)
    accepted = 0
    while request.num_output < NUM_DRAWN:
        tree = drafter.propose(DraftBudget(8, NodePrice(0.2)))
        rows_RV = LOGITS_VV[torch.from_numpy(tree.tokens.astype(np.int64))].contiguous()
        top = top_tokens(rows_RV, 4)
        verdict = verify(tree, rows_RV, sampler_for(request, tree, None))
        request.extend(verdict.tokens)
        drafter.observe(tree, verdict, top)
        accepted += verdict.num_accepted
    return request.output[:NUM_DRAWN].tolist(), accepted


@pytest.mark.parametrize("law", LAWS, ids=lambda law: f"T{law.temperature}-p{law.top_p}-k{law.top_k}")
@pytest.mark.parametrize(("verification", "candidates"), [("match", "coupled"), ("rejection", None)])
def test_drafted_tokens_follow_the_targets_law(law: SamplingParams, verification: str, candidates: str | None) -> None:
    session = lone_session(2**18)
    mistaken_ids = np.tile(np.arange(5, dtype=np.int32), (VOCAB, 1))  # q starts far from p and learns
    contexts = np.array([(-1, -1, -1, token) for token in range(VOCAB)], np.int32)
    session.ngrams.harvest(contexts, mistaken_ids, np.tile(np.float32([0.4, 0.3, 0.1, 0.1, 0.1]), (VOCAB, 1)))
    speculation = SpeculationParams(method="stand", verification=verification, candidates=candidates)
    seen: Counter[tuple[int, ...]] = Counter()
    accepted = 0
    for seed in range(TRIALS):
        tokens, num_accepted = draw(law, speculation, seed, session)
        seen[tuple(tokens)] += 1
        accepted += num_accepted
    laws = processed(law)
    expected, observed = [], []
    for path in product(range(VOCAB), repeat=NUM_DRAWN):
        steps = zip((int(PROMPT[-1]), *path[:-1]), path, strict=True)
        expected.append(TRIALS * float(np.prod([laws[before, token] for before, token in steps])))
        observed.append(seen[path])
    impossible = sum(count for count, wanted in zip(observed, expected, strict=True) if wanted == 0)
    assert impossible == 0
    is_common = np.array(expected) >= 5
    cells = np.append(np.array(observed)[is_common], np.array(observed)[~is_common].sum())
    wanted = np.append(np.array(expected)[is_common], np.array(expected)[~is_common].sum())
    cells, wanted = cells[wanted > 0], wanted[wanted > 0]
    assert len(cells) > 10
    assert stats.chisquare(cells, wanted * cells.sum() / wanted.sum()).pvalue > 0.001
    assert TRIALS / 2 < accepted < TRIALS * NUM_DRAWN * 3


def test_the_processed_law_is_the_samplers() -> None:
    for law in LAWS:
        for row, expected in zip(LOGITS_VV.numpy(), processed(law), strict=True):
            np.testing.assert_allclose(target_law(row, row.max(), law_of(law)), expected, rtol=1e-5)


def test_a_child_the_target_gives_no_chance_is_never_taken_and_a_sure_one_always() -> None:
    rows_RV = torch.full((3, VOCAB), -torch.inf)
    rows_RV[:, 4] = 0.0  # the target always says 4
    draws = Draws(np.array([[3, 4, 5]] * 3, np.int32), np.array([[0.5, 0.4, 0.1]] * 3))
    tokens, parents = np.array([0, 3, 4], np.int32), np.array([-1, 0, 0], np.int32)
    tree = DraftTree(tokens, parents, np.zeros(3, np.int8), draws)
    for seed in range(50):
        law = law_of(SamplingParams(max_tokens=4, seed=seed))
        verdict = verify(tree, rows_RV, RejectionSampler(tree, law, len(PROMPT)))
        assert verdict.path.tolist() == [0, 2]
        assert verdict.tokens.tolist() == [4, 4]


def test_a_draft_law_equal_to_the_target_is_always_accepted() -> None:
    row = LOGITS_VV[0]
    q = row.double().softmax(-1).numpy()
    rows_RV = torch.stack((row, row)).contiguous()
    draws = Draws(np.tile(np.arange(VOCAB, dtype=np.int32), (2, 1)), np.stack((q, q)))
    for seed in range(200):
        token = seed % VOCAB
        tree = DraftTree(np.array([0, token], np.int32), np.array([-1, 0], np.int32), np.zeros(2, np.int8), draws)
        law = law_of(SamplingParams(max_tokens=4, seed=seed))
        assert verify(tree, rows_RV, RejectionSampler(tree, law, len(PROMPT))).num_accepted == 1


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"method": "stand", "verification": "hope"}, "verification"),
        ({"method": "spine", "verification": "rejection"}, "verification"),
        ({"method": "stand", "verification": "rejection", "candidates": "coupled"}, "candidates"),
    ],
)
def test_what_cannot_be_verified_by_rejection_is_refused(options: dict[str, str], field: str) -> None:
    with pytest.raises(RequestRejected) as caught:
        check(SpeculationParams(**options))  # type: ignore[arg-type]
    assert caught.value.param == f"speculation.{field}"


def test_greedy_requests_are_verified_the_one_way_there_is() -> None:
    session = lone_session(2**18)
    session.ngrams.harvest(
        np.array([[-1, -1, 1, 2]], np.int32), np.array([[3, 4]], np.int32), np.array([[0.6, 0.3]], np.float32)
    )
    sampling = SamplingParams(max_tokens=4, temperature=0.0)
    speculation = SpeculationParams(method="stand", verification="rejection")
    request = Request(id="greedy", prompt=PROMPT, sampling=sampling, speculation=speculation)
    tree = StandDrafter(request, session).propose(DraftBudget(8))
    assert len(tree) > 1
    assert tree.draws is None
