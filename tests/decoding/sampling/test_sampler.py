"""Samplers draw from the law that was asked for; a token depends on its row and position alone; broken rows raise."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats

from decoding.core.request import Request
from decoding.core.sampling_params import SamplingParams
from decoding.core.speculation_params import SpeculationParams
from decoding.core.tree import DraftTree, Draws, Source, chain, root_only
from decoding.errors import BrokenLogits
from decoding.kernels.cpu.sampling.noise import fill_words
from decoding.kernels.cpu.sampling.row import tokens_at_least
from decoding.sampling import law as law_module
from decoding.sampling.cpu_sampler import CpuSampler, draw_token
from decoding.sampling.law import Law, law_of, nucleus
from decoding.sampling.logits_processors import LogitsProcessors
from decoding.sampling.rejection import RejectionSampler
from decoding.sampling.sampler import ProcessedSampler, sampler_for, verdict_on
from decoding.sampling.verify import Sampler, verify
from tests.reference_sampler import ReferenceSampler, reference_draw_token

GREEDY = SamplingParams(max_tokens=9, temperature=0.0, seed=5)
ASKED = {
    "greedy": GREEDY,
    "temperature": replace(GREEDY, temperature=0.7),
    "hot": replace(GREEDY, temperature=5.0),
    "top_p": replace(GREEDY, temperature=0.8, top_p=0.9),
    "tight_top_p": replace(GREEDY, temperature=1.0, top_p=0.05),
    "top_k": replace(GREEDY, temperature=1.0, top_k=7),
    "top_k_1": replace(GREEDY, temperature=1.0, top_k=1),
    "min_p": replace(GREEDY, temperature=1.0, min_p=0.1),
    "all": replace(GREEDY, temperature=1.3, top_k=20, top_p=0.8, min_p=0.02),
}


def request_of(sampling: SamplingParams, prompt_len: int = 1) -> Request:
    return Request(
        id="r", prompt=np.zeros(prompt_len, np.int32), sampling=sampling, speculation=SpeculationParams(method="none")
    )


def draw_all(sampler: Sampler, logits_NV: torch.Tensor) -> list[int]:
    """A token from each row, one position after another."""
    return [sampler.draw(row_V, 0) for row_V in logits_NV]


@pytest.mark.parametrize("asked", ASKED.values(), ids=ASKED.keys())
@pytest.mark.parametrize("vocab_size", [3, 50, 4001])
def test_kernel_and_reference_draw_the_same_tokens(asked: SamplingParams, vocab_size: int) -> None:
    torch.manual_seed(vocab_size)
    logits = torch.randn(64, vocab_size) * 3
    logits[::2] = (logits[::2] * 2).round() / 2  # many exact ties
    law = law_of(asked)
    assert draw_all(CpuSampler(law, 1), logits) == draw_all(ReferenceSampler(law, 1), logits)


def random_row(rng: np.random.Generator, vocab_size: int) -> torch.Tensor:
    """Flat or peaked, or with ties, or mostly minus infinity, or far from zero."""
    row = rng.standard_normal(vocab_size).astype(np.float32) * np.float32(rng.choice([0.0, 0.1, 1.0, 4.0, 30.0]))
    match rng.integers(5):
        case 0:
            row = np.round(row * 2) / 2
        case 1:
            row[rng.integers(vocab_size)] += 15
        case 2:
            row[rng.random(vocab_size) < 0.9] = -np.inf
            row[rng.integers(vocab_size)] = -1
        case 3:
            row -= np.float32(1e6)
    return torch.from_numpy(row)


@pytest.mark.parametrize(("most_tokens", "num_rows"), [(9, 300), (600, 400), (5_000, 200), (151_936, 12)])
def test_any_row_at_any_temperature_gives_the_token_of_the_reference(most_tokens: int, num_rows: int) -> None:
    rng = np.random.default_rng(most_tokens)
    for _ in range(num_rows):
        row_V = random_row(rng, int(rng.integers(most_tokens // 2 + 1, most_tokens, endpoint=True)))
        top_p, min_p = float(rng.choice([1.0, 1.0, 0.9])), float(rng.choice([0.0, 0.0, 0.01, 1.0]))
        seed = rng.integers(2**64, dtype=np.uint64)
        law = Law(float(rng.uniform(0.1, 3)), int(rng.choice([0, 0, 5])), top_p, min_p, seed)
        position = int(rng.choice([1, 100_000, 2**32 - 1]))
        assert draw_token(row_V.numpy(), law, position) == reference_draw_token(row_V, law, position), law


def test_of_tokens_that_score_the_same_the_first_is_drawn() -> None:
    law, row_V = law_of(SamplingParams(max_tokens=1, temperature=0.7, seed=2)), np.full(400_000, -np.inf, np.float32)
    words = np.empty(len(row_V), np.uint32)
    fill_words(words, law.seed, 3, 0)
    order = np.argsort(words, kind="stable")
    same = np.flatnonzero(np.diff(words[order]) == 0)
    assert len(same) > 5, "tokens that share a word"
    for first, second in zip(order[same], order[same + 1], strict=True):
        row_V[[first, second]] = 1.5
        assert draw_token(row_V, law, 3) == first < second
        row_V[[first, second]] = -np.inf


@pytest.mark.parametrize("temperature", [1e-300, 1e-38, 1e-3])
def test_next_to_no_temperature_is_greedy_among_the_highest(temperature: float) -> None:
    law, row_V = law_of(SamplingParams(max_tokens=1, temperature=temperature)), np.arange(700, dtype=np.float32)
    row_V[[300, 600]] = 699
    assert {draw_token(row_V, law, position) for position in range(50)} == {300, 600, 699}


@pytest.mark.parametrize("asked", ASKED.values(), ids=ASKED.keys())
def test_a_row_is_drawn_the_same_alone_and_after_others(asked: SamplingParams) -> None:
    torch.manual_seed(0)
    logits, law = torch.randn(9, 300) * 3, law_of(asked)
    along = draw_all(CpuSampler(law, 1), logits)
    assert along == [CpuSampler(law, 1 + place).draw(row_V, 0) for place, row_V in enumerate(logits)]


@pytest.mark.parametrize("name", ["temperature", "top_p", "top_k", "min_p", "all"])
def test_the_law_is_the_one_asked_for(name: str) -> None:
    torch.manual_seed(1)
    asked = replace(ASKED[name], seed=9)
    logits = torch.randn(1, 12)
    law = torch.softmax(logits[0].double() / asked.temperature, -1).numpy()
    order = np.argsort(-law)
    kept = np.ones(12, bool)
    kept[order[asked.top_k :] if asked.top_k else []] = False
    mass = np.cumsum(law[order] * kept[order]) - law[order]
    if asked.top_p < 1:
        kept[order[mass >= asked.top_p * law[kept].sum()]] = False
    kept &= law >= asked.min_p * law.max()
    law = np.where(kept, law, 0) / law[kept].sum()
    draws = draw_all(CpuSampler(law_of(asked), 1), logits.expand(20_000, -1))
    counts = np.bincount(draws, minlength=12)
    assert counts[law == 0].sum() == 0
    assert stats.chisquare(counts[law > 0], law[law > 0] * len(draws)).pvalue > 0.001


@pytest.mark.parametrize("top_p", [0.8, 1.0])
@pytest.mark.parametrize("num_left", [1, 5, 19, 20, 21, 60])
def test_of_what_a_grammar_leaves_the_nucleus_is_found_in_a_few_passes(
    num_left: int, top_p: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    random, num_passes = np.random.default_rng(num_left), 0

    def passing(row: np.ndarray, value: np.float32) -> np.ndarray:
        nonlocal num_passes
        num_passes += 1
        return tokens_at_least(row, value)

    monkeypatch.setattr(law_module, "tokens_at_least", passing)
    for spread in (0.0, 1.0, 10.0, 500.0):
        row = np.full(2000, -np.inf, np.float32)
        row[random.choice(2000, num_left, replace=False)] = spread * random.normal(size=num_left)
        num_passes, best = 0, row.max()
        kept = nucleus.py_func(row, best, Law(0.7, 20, top_p, 0.0, np.uint64(1)))
        order = np.argsort(-row, kind="stable")[: min(num_left, 20)]
        weights = np.exp((row[order].astype(np.float64) - best) / 0.7)
        before = np.cumsum(weights) - weights
        assert kept.tolist() == order[(before < top_p * weights.sum()) | (top_p == 1)].tolist()
        assert num_passes <= 2 or num_left > 20


TREE = DraftTree(  # 0 -> {3 -> {1 -> 2}, 9}
    np.array([0, 3, 9, 1, 2], np.int32), np.array([-1, 0, 0, 1, 3], np.int32), np.zeros(5, np.int8)
)


@pytest.mark.parametrize("asked", ASKED.values(), ids=ASKED.keys())
def test_a_tree_is_verified_as_by_the_reference(asked: SamplingParams) -> None:
    reached = 0
    for seed in range(40):
        torch.manual_seed(seed)
        logits = torch.randn(12, 10)
        for sampling, first in ((replace(asked, seed=2**64 - 1 - seed), 1), (GREEDY, 7)):
            request, rows = request_of(sampling, 4 + first), logits[first : first + len(TREE)]
            verdict = verdict_on(TREE, rows, request, law_of(request.sampling), None)
            expected = verify(TREE, rows, ReferenceSampler(law_of(sampling), request.num_tokens))
            assert verdict.path.tolist() == expected.path.tolist()
            assert verdict.tokens.tolist() == expected.tokens.tolist()
            reached += len(verdict.tokens)
    assert reached > 90


def test_the_law_is_one_compiled_record_however_numbers_were_written() -> None:
    whole = SamplingParams(max_tokens=1, temperature=1, top_p=1, min_p=0, seed=2**64 - 1)
    assert [type(value) for value in law_of(whole)] == [float, int, float, float, np.uint64]
    assert law_of(whole) == Law(1.0, 0, 1.0, 0.0, np.uint64(2**64 - 1))


VOCAB_SIZE = 2048
DRAWS = Draws(np.array([[3, 4]], np.int32), np.array([[0.5, 0.5]]))
DRAWN = DraftTree(np.zeros(1, np.int32), np.full(1, -1, np.int32), np.zeros(1, np.int8), DRAWS)
SAMPLED, TOP_P = law_of(ASKED["temperature"]), law_of(ASKED["top_p"])


def processed(sampling: SamplingParams) -> Sampler:
    request = request_of(sampling, 7)
    return sampler_for(request, root_only(0), LogitsProcessors(request, VOCAB_SIZE))


SAMPLERS = {
    "greedy": lambda: CpuSampler(law_of(GREEDY), 7),
    "sampled": lambda: CpuSampler(SAMPLED, 7),
    "top_p": lambda: CpuSampler(TOP_P, 7),
    "reference greedy": lambda: ReferenceSampler(law_of(GREEDY), 7),
    "reference": lambda: ReferenceSampler(TOP_P, 7),
    "rejection": lambda: RejectionSampler(DRAWN, TOP_P, 7),
    "processed": lambda: processed(replace(ASKED["temperature"], presence_penalty=1.0)),
    "masked": lambda: processed(replace(GREEDY, allowed_token_ids=(5, 6))),
    "processed rejection": lambda: ProcessedSampler(
        RejectionSampler(DRAWN, TOP_P, 7), LogitsProcessors(request_of(ASKED["top_p"], 7), VOCAB_SIZE)
    ),
}


def broken(value: float, places: slice) -> torch.Tensor:
    row_V = torch.randn(VOCAB_SIZE, generator=torch.Generator().manual_seed(3))
    row_V[places] = value
    return row_V


NEGATIVE_NAN = float(np.array(0xFFC00000, np.uint32).view(np.float32))  # what 0 / 0 gives on x86
BROKEN_ROWS = {
    "all NaN": broken(np.nan, slice(None)),
    "the first NaN": broken(np.nan, slice(1)),
    "one NaN inside": broken(np.nan, slice(1001, 1002)),
    "the last a negative NaN": broken(NEGATIVE_NAN, slice(VOCAB_SIZE - 1, None)),
    "one infinite": broken(np.inf, slice(77, 78)),
    "nothing above minus infinity": broken(-np.inf, slice(None)),
}


@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize("row_V", BROKEN_ROWS.values(), ids=BROKEN_ROWS.keys())
def test_numbers_that_are_not_finite_raise_at_their_position(name: str, row_V: torch.Tensor) -> None:
    sampler = SAMPLERS[name]()
    assert 0 <= sampler.draw(broken(-np.inf, slice(9, None)), 0) < 9, "minus infinity is a token that cannot be drawn"
    with pytest.raises(BrokenLogits, match="The model gave numbers that are not finite at position 8"):
        sampler.draw(row_V, 0)


@pytest.mark.parametrize("asked", [GREEDY, ASKED["temperature"]])
def test_a_broken_row_raises_where_the_walk_comes_to_it_and_nowhere_else(asked: SamplingParams) -> None:
    rows_NV = torch.eye(3)[[1, 2, 0]] * 1000
    request, ahead, aside = request_of(asked, 7), chain(0, np.array([1, 2], np.int32), Source.CONTEXT), root_only(0)
    rows_NV[1, 0] = np.nan
    assert verdict_on(aside, rows_NV, request, law_of(request.sampling), None).tokens.tolist() == [1]
    with pytest.raises(BrokenLogits, match="at position 8"):
        verdict_on(ahead, rows_NV, request, law_of(request.sampling), None)
