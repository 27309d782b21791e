"""The sampler on the device tells every sequence what the host would, for whatever it asks, in one launch."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from decoding.bench.sampling.cases import random_step, random_tree
from decoding.config import EngineConfig
from decoding.core.grammar import Grammar
from decoding.core.request import Request
from decoding.core.sampling_params import SamplingParams
from decoding.core.speculation_params import SpeculationParams
from decoding.core.token_logprobs import TokenLogprobs
from decoding.core.top_tokens import TopTokens
from decoding.core.tree import DraftTree, Draws, root_only
from decoding.errors import BrokenLogits
from decoding.sampling.asked import Asked, Drawn
from decoding.sampling.device.device_sampler import DeviceDrawing, DeviceSampler
from decoding.sampling.device.launch import Kernels, likeliest
from decoding.sampling.grammar.builder import GrammarBuilder
from decoding.sampling.law import law_of
from decoding.sampling.logits_processors import processors_of
from decoding.sampling.sampler import HostSampler
from decoding.sampling.top_tokens import top_tokens
from tests.asking import encode

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
GREEDY = SamplingParams(max_tokens=64, temperature=0.0, seed=5)
SAMPLED = replace(GREEDY, temperature=0.8, top_p=0.9)
VOCAB_SIZE = 2048  # the bundled model's, whose grammars are asked for
BLOCK_LEN = 512


def drawing_of(logits_RV: torch.Tensor, asked: list[Asked], block_len: int = BLOCK_LEN) -> DeviceDrawing:
    return DeviceSampler(block_len).launch(logits_RV.to(DEVICE), asked)


def check_same(logits_RV: torch.Tensor, asked: list[Asked], block_len: int = BLOCK_LEN) -> list[Drawn]:
    """What the device says, which is what the host says after it."""
    drawing = drawing_of(logits_RV, asked, block_len)
    on_device = [drawing.collect(place) for place in range(len(asked))]
    on_host = HostSampler().launch(logits_RV, asked)
    for place, drawn in enumerate(on_device):
        expected = on_host.collect(place)
        assert (drawn.verdict is None) == (expected.verdict is None)
        if drawn.verdict is not None and expected.verdict is not None:
            assert drawn.verdict.tokens.tolist() == expected.verdict.tokens.tolist(), asked[place].request.sampling
            assert drawn.verdict.path.tolist() == expected.verdict.path.tolist()
        check_same_top(drawn.top, expected.top)
        check_same_logprobs(drawn.logprobs or [], expected.logprobs or [])
        check_same_logprobs(drawn.prompt_logprobs, expected.prompt_logprobs)
    return on_device


def check_same_top(top: TopTokens | None, expected: TopTokens | None) -> None:
    assert (top is None) == (expected is None)
    if top is not None and expected is not None:
        is_possible = expected.probabilities > 0
        assert top.ids.shape == expected.ids.shape
        assert (top.ids == expected.ids)[is_possible].all()
        np.testing.assert_allclose(top.probabilities, expected.probabilities, rtol=1e-5)


def check_same_logprobs(logprobs: list[TokenLogprobs], expected: list[TokenLogprobs]) -> None:
    for ours, theirs in zip(logprobs, expected, strict=True):
        assert (ours.token_id, ours.rank) == (theirs.token_id, theirs.rank)
        assert [ours.logprob, *(each for _, each in ours.top)] == pytest.approx(
            [theirs.logprob, *(each for _, each in theirs.top)], abs=1e-5
        )


def plain(sampling: SamplingParams, first: int = 0, tree: DraftTree | None = None) -> Asked:
    """A sequence that is to draw after one row, or after a tree's."""
    request = Request(
        id="r", prompt=encode("1 2 3"), sampling=sampling, speculation=SpeculationParams(), eos_token_ids=frozenset({3})
    )
    matcher = None
    if sampling.grammar is not None:
        matcher = GrammarBuilder(EngineConfig(), VOCAB_SIZE, frozenset({3})).build(sampling.grammar).new_matcher()
    tree = tree or root_only(0)
    processors = processors_of(request, VOCAB_SIZE, matcher)
    law, nothing, position = law_of(request.sampling), request.prompt[:0], request.num_tokens
    return Asked(request, law, first, len(tree), tree, processors, 0, nothing, 0, position)


@pytest.mark.parametrize(
    ("vocab_size", "block_len"), [(1003, 256), (1536, 2048), pytest.param(33_000, 16_384, marks=pytest.mark.slow)]
)
def test_any_step_is_drawn_as_on_the_host(vocab_size: int, block_len: int) -> None:
    check_same(*random_step(np.random.default_rng(vocab_size), vocab_size, 32), block_len)


def test_a_tree_is_walked_as_far_as_on_the_host() -> None:
    rng, accepted = np.random.default_rng(3), 0
    for sampling in (GREEDY, SAMPLED, replace(SAMPLED, presence_penalty=0.5)):
        tree = random_tree(rng, VOCAB_SIZE, 14)
        logits_RV = torch.randn(14, VOCAB_SIZE, generator=torch.Generator().manual_seed(1))
        logits_RV[tree.parents[1:], tree.tokens[1:]] += 9
        [drawn] = check_same(logits_RV, [plain(sampling, tree=tree)])
        assert drawn.verdict is not None
        accepted += drawn.verdict.num_accepted
    assert accepted > 3


def test_equal_numbers_go_to_the_smallest_id_and_zero_has_no_sign() -> None:
    logits_RV = torch.full((3, VOCAB_SIZE), -1.0)
    logits_RV[0, [700, 900]], logits_RV[1, [600, 601]], logits_RV[2, :] = 2.0, torch.tensor([-0.0, 0.0]), 0.0
    asked = [plain(GREEDY, 0), plain(GREEDY, 1), plain(replace(SAMPLED, top_k=3), 2)]
    tokens = [drawn.verdict.tokens.tolist() for drawn in check_same(logits_RV, asked) if drawn.verdict]
    assert tokens[:2] == [[700], [600]]
    assert tokens[2][0] < 3


def test_a_grammar_is_followed_through_the_tree() -> None:
    tokens = encode('["one", "two", "one"]')
    sampling = replace(SAMPLED, grammar=Grammar("json_schema", '{"type": "array", "items": {"enum": ["one", "two"]}}'))
    nodes = np.concatenate(([0], tokens[:5], [7, 8])).astype(np.int32)  # and two that the grammar forbids
    tree = DraftTree(nodes, np.array([-1, 0, 1, 2, 3, 4, 0, 6], np.int32), np.zeros(8, np.int8))
    logits_RV = torch.randn(8, VOCAB_SIZE, generator=torch.Generator().manual_seed(2))
    logits_RV[[0, 1, 2, 3, 4], tree.tokens[1:6]] += 30
    [drawn] = check_same(logits_RV, [plain(sampling, tree=tree)])
    assert drawn.verdict is not None
    assert drawn.verdict.num_accepted == 5


NO_TOKEN_LEFT = replace(GREEDY, allowed_token_ids=(5,), bad_words=((5,),))
DRAWS = Draws(np.array([[3, 4]], np.int32), np.array([[0.5, 0.5]]))
DRAWN = DraftTree(np.zeros(1, np.int32), np.full(1, -1, np.int32), np.zeros(1, np.int8), DRAWS)


def test_the_host_answers_for_what_the_device_cannot() -> None:
    logits_RV = torch.randn(3, VOCAB_SIZE, generator=torch.Generator().manual_seed(4))
    asked = [plain(NO_TOKEN_LEFT, 0), plain(SAMPLED, 1), plain(SAMPLED, 2, DRAWN)]
    drawing = drawing_of(logits_RV, asked)
    drawn = [drawing.collect(place) for place in range(3)]
    assert drawing.num_on_host == 2
    assert drawn[0].verdict is not None
    assert drawn[0].verdict.tokens.tolist() == [5]
    check_same(logits_RV, asked[1:])


@pytest.mark.parametrize("number", [float("nan"), -float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("asked", [GREEDY, SAMPLED, replace(GREEDY, allowed_token_ids=(5, 6))])
def test_a_row_that_is_broken_raises_for_its_sequence_alone(number: float, asked: SamplingParams) -> None:
    logits_RV = torch.randn(2, VOCAB_SIZE, generator=torch.Generator().manual_seed(5))
    logits_RV[0, slice(None) if number == -float("inf") else 777] = number
    drawing = drawing_of(logits_RV, [plain(asked, 0), plain(asked, 1)])
    with pytest.raises(BrokenLogits):
        drawing.collect(0)
    assert drawing.collect(1).verdict is not None


def tokens_of(drawn: Drawn) -> list[int]:
    assert drawn.verdict is not None
    tokens: list[int] = drawn.verdict.tokens.tolist()
    return tokens


@pytest.mark.parametrize("num_top", [None, 3])
def test_the_tokens_after_those_under_way_are_drawn_a_position_further_on(num_top: int | None) -> None:
    """By the laws of the sequences that go on, in another order, before anything of the first is collected."""
    generator = torch.Generator().manual_seed(7)
    first_RV, second_RV, third_RV = (torch.randn(rows, VOCAB_SIZE, generator=generator) for rows in (3, 2, 2))
    laws = [replace(SAMPLED, seed=seed, temperature=0.5 * seed, logprobs=num_top) for seed in range(3)]
    asked = [plain(law, row) for row, law in enumerate(laws)]
    drawing = drawing_of(first_RV, asked)
    assert drawing.roots is drawing
    following = drawing.follow(second_RV.to(DEVICE), np.array([2, 0]))
    tokens = [[drawing.collect(place) for place in range(3)]]
    last = following.follow(third_RV.to(DEVICE), np.array([1, 0]))
    assert following.tokens_B.tolist() == [tokens_of(following.collect(place))[0] for place in range(2)]
    tokens += [[each.collect(place) for place in range(2)] for each in (following, last)]
    for step, (logits_RV, places) in enumerate(((first_RV, [0, 1, 2]), (second_RV, [2, 0]), (third_RV, [0, 2]))):
        for row, place in enumerate(places):
            request = plain(laws[place]).request
            request.extend(np.full(step, 9, np.int32))
            law, position = law_of(laws[place]), request.num_tokens
            alone = Asked(request, law, row, 1, root_only(0), None, 0, request.prompt[:0], 0, position)
            expected, drawn = HostSampler().launch(logits_RV, [alone]).collect(0), tokens[step][row]
            assert tokens_of(drawn) == tokens_of(expected)
            check_same_logprobs(drawn.logprobs or [], expected.logprobs or [])
            assert (drawn.logprobs is None) == (num_top is None)


def test_trees_and_what_the_host_draws_are_followed_by_nothing() -> None:
    logits_RV = torch.randn(16, VOCAB_SIZE, generator=torch.Generator().manual_seed(8))
    tree = random_tree(np.random.default_rng(3), VOCAB_SIZE, 14)
    assert drawing_of(logits_RV, [plain(SAMPLED, 0), plain(SAMPLED, 1, tree)]).roots is None
    assert drawing_of(logits_RV, [plain(SAMPLED, 0), plain(SAMPLED, 1, DRAWN)]).roots is None
    assert HostSampler().launch(logits_RV, [plain(SAMPLED, 0)]).roots is None


def test_the_likeliest_tokens_of_any_rows_are_found() -> None:
    rows = torch.randn(4, 700, generator=torch.Generator().manual_seed(6)).mul(2).round().div(2)
    check_same_top(likeliest(rows.to(DEVICE), 10), top_tokens(rows, 10))
    check_same_top(likeliest(rows[:, :7].contiguous().to(DEVICE), 10), top_tokens(rows[:, :7].contiguous(), 10))


def test_nothing_waits_before_the_results_are_collected(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(7)
    logits_RV, asked = random_step(rng, 300, 12)
    waits: list[str] = []
    sampler = DeviceSampler(BLOCK_LEN, Kernels(*[_Queued()] * 7))
    sampler.launch(logits_RV.to(DEVICE), asked)  # has its memory from here on
    with monkeypatch.context() as patched:
        for name in ("item", "tolist", "numpy", "cpu", "__bool__", "__int__", "__float__", "__index__", "nonzero"):
            patched.setattr(torch.Tensor, name, lambda *_, name=name: waits.append(name))
        sampler.launch(logits_RV.to(DEVICE), asked)
        assert waits == []


class _Queued:
    """A kernel of which nothing is known on the host but that it was launched."""

    def __getitem__(self, grid: tuple[int, ...]) -> _Queued:
        assert all(size > 0 for size in grid), grid
        return self

    def __call__(self, *_arguments: object, **_options: object) -> None:
        pass
