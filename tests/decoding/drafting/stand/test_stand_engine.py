"""With STAND drafting, every request of a shared session gets the tokens of plain decoding, in fewer steps."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from decoding.config import EngineConfig
from decoding.core.events import Finished
from decoding.core.request import Request
from decoding.core.sampling_params import SamplingParams
from decoding.core.speculation_params import SpeculationParams
from decoding.core.stats import DraftCounts
from decoding.engine.engine import Engine
from decoding.engine.start import start_engine
from decoding.model.target_model import TargetModel
from tests.models import VOCAB_SIZE, tiny
from tests.pairs import GIVEN

CONFIG = EngineConfig(max_model_len=400, kv_slots=8192, max_batch_rows=400, max_nodes=80, threads=1)
SIBLINGS = 4
LAWS = [
    SamplingParams(max_tokens=40, temperature=0.0, ignore_eos=True),
    SamplingParams(max_tokens=40, temperature=0.6, ignore_eos=True),
    SamplingParams(max_tokens=40, temperature=1.0, ignore_eos=True),
    SamplingParams(max_tokens=40, temperature=0.6, top_p=0.95, ignore_eos=True),
    SamplingParams(max_tokens=40, temperature=1.0, top_p=0.95, top_k=20, min_p=0.01, ignore_eos=True),
]


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def engine(request: pytest.FixtureRequest) -> Engine:
    config = replace(CONFIG, dtype=request.param)
    model = TargetModel.from_model(tiny("llama").to(getattr(torch, request.param)), config)
    return start_engine(model, config, kept=GIVEN)


def prompt_of(length: int) -> NDArray[np.int32]:
    return np.random.default_rng(length).integers(3, VOCAB_SIZE, length).astype(np.int32)


def together(
    engine: Engine, law: SamplingParams, speculation: SpeculationParams, session: str, first_seed: int = 2**60
) -> tuple[list[list[int]], DraftCounts]:
    """Replies of siblings that run side by side in one session, each with its own seed; their pooled counts."""
    requests = [
        Request(
            id=f"{session}-{seed}",
            prompt=prompt_of(24),
            sampling=replace(law, seed=first_seed + seed),
            speculation=speculation,
            session_id=session,
        )
        for seed in range(SIBLINGS)
    ]
    pooled = DraftCounts()
    for request in requests:
        engine.add(request)
        engine.step()  # siblings arrive one after the other
    while engine.has_work:
        for finished in engine.step().of(Finished):
            pooled.drafted += finished.stats.counts.drafted
            pooled.accepted += finished.stats.counts.accepted
    return [request.output.tolist() for request in requests], pooled


@pytest.mark.parametrize("law", LAWS, ids=lambda law: f"T{law.temperature}-p{law.top_p}-k{law.top_k}")
def test_siblings_in_one_session_get_the_plain_tokens(engine: Engine, law: SamplingParams) -> None:
    if not engine.model.is_exact:
        pytest.skip("this processor does not give row-invariant arithmetic")
    name = f"{law}"
    plain, _ = together(engine, law, SpeculationParams(method="none"), f"{name} plain")
    drafted, counts = together(engine, law, SpeculationParams(method="stand", max_nodes=40), f"{name} stand")
    assert drafted == plain
    assert len({tuple(reply) for reply in plain}) == (1 if law.temperature == 0 else SIBLINGS)
    assert counts.accepted > 0
    assert counts.drafted > counts.accepted


@pytest.mark.parametrize("candidates", ["coupled", "independent", "deterministic"])
@pytest.mark.parametrize("without", [(), ("best_first",)], ids=str)
def test_every_way_of_drawing_and_every_shape_gives_the_plain_tokens(
    engine: Engine, candidates: str, without: tuple[str, ...]
) -> None:
    if not engine.model.is_exact:
        pytest.skip("this processor does not give row-invariant arithmetic")
    law = LAWS[1]
    plain, _ = together(engine, law, SpeculationParams(method="none"), "modes plain")
    speculation = SpeculationParams(
        method="stand", max_nodes=80, candidates=candidates, without=frozenset(without), max_depth=6
    )
    drafted, counts = together(engine, law, speculation, f"modes {candidates} {without}")
    assert drafted == plain
    assert counts.accepted > 0


def test_coupled_candidates_are_accepted_more_often_than_deterministic_ones(engine: Engine) -> None:
    """The reply is the same, so the store is nearly the same: only the order of candidates differs."""
    if engine.model.dtype != torch.float32:
        pytest.skip("what is accepted does not hang on the arithmetic")
    accepted = Counter[str]()
    for candidates in ("coupled", "deterministic"):
        speculation = SpeculationParams(
            method="stand", max_nodes=4, max_depth=1, candidates=candidates, without=frozenset({"best_first"})
        )
        for first_seed in range(0, 4 * SIBLINGS, SIBLINGS):
            for _ in range(2):  # the second time every sibling's n-grams are known
                _, counts = together(engine, LAWS[2], speculation, f"{candidates} {first_seed}", first_seed)
            accepted[candidates] += counts.accepted
    assert accepted["coupled"] > accepted["deterministic"]


def test_a_session_counts_its_ngram_store_once_it_is_used(engine: Engine) -> None:
    session = engine.sessions.open("", "bytes")
    before = session.num_bytes
    together(engine, LAWS[0], SpeculationParams(method="stand", max_nodes=8), "bytes")
    assert engine.sessions.open("", "bytes") is session
    assert session.num_bytes == session.ngrams.num_bytes + session.replies.num_bytes > before
    assert sum(session.ngrams.num_entries) > 100
    assert engine.sessions.open("other tenant", "bytes").ngrams is not session.ngrams
