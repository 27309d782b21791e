"""What requests ask of logits: the compiled row is the reference's, along a reply."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import cast

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from decoding.core.request import Request
from decoding.core.sampling_params import SamplingParams
from decoding.core.speculation_params import SpeculationParams
from decoding.core.tree import DraftTree, Source, chain, root_only
from decoding.errors import RequestRejected
from decoding.sampling.cpu_sampler import CpuSampler
from decoding.sampling.grammar.matcher import GrammarMatcher
from decoding.sampling.law import law_of
from decoding.sampling.logits_processors import LogitsProcessors, processors_of, reference_process
from decoding.sampling.sampler import ProcessedSampler
from decoding.sampling.token_lists import RecentLists, TokenLists, bit_mask
from decoding.sampling.verify import verify
from tests.reference_sampler import ReferenceSampler

VOCAB_SIZE = 67
NONE = SamplingParams(max_tokens=40, temperature=0.0)
ASKED = {
    "presence": replace(NONE, presence_penalty=1.3),
    "frequency": replace(NONE, frequency_penalty=-0.7),
    "repetition": replace(NONE, repetition_penalty=1.7),
    "bias": replace(NONE, logit_bias={3: 4.5, 66: -100.0, 0: 0.1}),
    "bad_words": replace(NONE, bad_words=((5,), (7, 8), (1, 2, 3), (9, 9))),
    "allowed": replace(NONE, allowed_token_ids=tuple(range(1, 60, 3))),
    "min_tokens": replace(NONE, min_tokens=9, stop_token_ids=(4, 11)),
}
EVERYTHING = replace(
    NONE,
    presence_penalty=0.5,
    frequency_penalty=0.25,
    repetition_penalty=0.8,
    logit_bias={3: 4.5, 7: -2.0},
    bad_words=((5,), (7, 8), (1, 2, 3), (9, 9)),
    allowed_token_ids=tuple(range(1, 60, 2)),
    min_tokens=9,
    stop_token_ids=(5, 11),
)


def request_of(sampling: SamplingParams, prompt: tuple[int, ...] = (9, 3, 3, 60, 1, 2)) -> Request:
    return Request(
        id="r", prompt=np.array(prompt, np.int32), sampling=sampling, speculation=SpeculationParams(method="none")
    )


def logits_of(num_rows: int, seed: int = 0) -> NDArray[np.float32]:
    return (np.random.default_rng(seed).standard_normal((num_rows, VOCAB_SIZE)) * 3).astype(np.float32)


class MaskedEverywhere:
    """Stands for a grammar that always allows the same tokens."""

    def __init__(self, ids: tuple[int, ...]) -> None:
        self.mask_W = bit_mask(np.array(ids), VOCAB_SIZE)

    def mask(self) -> NDArray[np.uint32]:
        return self.mask_W

    def consume(self, token: int) -> None:
        pass


@pytest.mark.parametrize("sampling", [*ASKED.values(), EVERYTHING], ids=[*ASKED, "everything"])
@pytest.mark.parametrize("has_grammar", [False, True])
def test_a_row_is_the_references_after_every_token(sampling: SamplingParams, has_grammar: bool) -> None:
    masked = MaskedEverywhere((1, 3, 5, 8, 21, 33)) if has_grammar else None
    request = request_of(sampling)
    processors = LogitsProcessors(request, VOCAB_SIZE, cast("GrammarMatcher | None", masked))
    changed = 0
    reply: list[int] = []
    for row, token in zip(logits_of(40), np.random.default_rng(1).integers(0, 12, 40).tolist(), strict=True):
        given = row.copy()
        processed = processors.row(row)
        np.testing.assert_array_equal(row, given)
        expected = reference_process(torch.from_numpy(row), request, reply, masked and masked.mask_W)
        np.testing.assert_array_equal(processed, expected.numpy())
        changed += int((processed != row).any())
        processors.note(token)
        reply.append(token)
    assert changed >= 9


def test_a_request_that_asks_for_nothing_has_no_processors() -> None:
    assert processors_of(request_of(NONE), VOCAB_SIZE, None) is None
    assert processors_of(request_of(replace(NONE, repetition_penalty=1.1)), VOCAB_SIZE, None) is not None


def test_processors_for_min_tokens_alone_end_with_them() -> None:
    processors = LogitsProcessors(request_of(ASKED["min_tokens"]), VOCAB_SIZE)
    for token in range(20, 29):
        assert processors.is_needed
        processors.note(token)
    assert not processors.is_needed


def test_presence_and_frequency_count_the_reply_and_repetition_the_prompt_too() -> None:
    row = np.full(VOCAB_SIZE, 2.0, np.float32)
    asked = replace(NONE, presence_penalty=1.0, frequency_penalty=0.25)
    processors = LogitsProcessors(request_of(asked), VOCAB_SIZE)
    for token in (7, 7, 8):
        processors.note(token)
    processed = processors.row(row)
    assert (processed[7], processed[8], processed[3]) == (0.5, 0.75, 2.0)
    repeated = LogitsProcessors(request_of(replace(NONE, repetition_penalty=2.0)), VOCAB_SIZE)
    repeated.note(7)
    processed = repeated.row(row)
    assert (processed[7], processed[3], processed[8]) == (1.0, 1.0, 2.0)


def test_a_bad_word_is_only_forbidden_after_its_beginning() -> None:
    processors = LogitsProcessors(request_of(replace(NONE, bad_words=((60, 1, 2, 8), (8, 8)))), VOCAB_SIZE)
    row = np.zeros(VOCAB_SIZE, np.float32)
    assert np.flatnonzero(processors.row(row) == -math.inf).tolist() == [8]  # the prompt ends with 60, 1, 2
    processors.note(5)
    assert np.isfinite(processors.row(row)).all()
    processors.note(8)
    assert np.flatnonzero(processors.row(row) == -math.inf).tolist() == [8]


@pytest.mark.parametrize(
    ("sampling", "grammar", "left"),
    [
        (replace(NONE, allowed_token_ids=(5, 6), bad_words=((5,), (6,))), None, {5, 6}),
        (replace(NONE, min_tokens=3, stop_token_ids=(5,)), (5,), {5}),
        (replace(NONE, allowed_token_ids=(6,)), (5, 7), {5, 7}),
    ],
)
def test_a_token_is_always_left(sampling: SamplingParams, grammar: tuple[int, ...] | None, left: set[int]) -> None:
    masked = cast("GrammarMatcher", MaskedEverywhere(grammar)) if grammar else None
    request = request_of(sampling)
    row = logits_of(1)[0]
    processed = LogitsProcessors(request, VOCAB_SIZE, masked).row(row)
    assert set(np.flatnonzero(processed > -math.inf).tolist()) == left
    expected = reference_process(torch.from_numpy(row), request, [], masked and masked.mask())
    np.testing.assert_array_equal(processed, expected.numpy())


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_each_node_of_a_tree_is_drawn_by_its_own_path(temperature: float) -> None:
    reached = 0
    for seed in range(30):
        sampling = replace(EVERYTHING, temperature=temperature, top_p=0.9, seed=seed)
        logits = torch.from_numpy(logits_of(6, seed))
        plain = _decode_plainly(logits, sampling)
        tree = _tree_along(plain[:-1])
        request = request_of(sampling)
        rows_NV = torch.cat((logits[:1], logits[1:2], logits[1:], logits[:2]))  # wrong siblings have other rows
        processors = LogitsProcessors(request, VOCAB_SIZE)
        sampler = ProcessedSampler(CpuSampler(law_of(sampling), request.num_tokens), processors)
        verdict = verify(tree, rows_NV, sampler)
        assert verdict.tokens.tolist() == plain
        reached += len(verdict.path)
        assert processors.num_noted == verdict.num_accepted, "the last token drawn is not accepted yet"
    assert reached == 30 * 6


def _decode_plainly(logits_NV: torch.Tensor, sampling: SamplingParams) -> list[int]:
    """The reply of one row after another, each processed by the reference and drawn by the reference."""
    request = request_of(sampling)
    reply: list[int] = []
    for row_V in logits_NV:
        processed_V = reference_process(row_V, request, reply, None)
        reply.append(ReferenceSampler(law_of(sampling), request.num_tokens).draw(processed_V, 0))
        request.extend(np.array(reply[-1:], np.int32))
    return reply


def _tree_along(tokens: list[int]) -> DraftTree:
    """A chain of these tokens with a wrong sibling before its first."""
    along = chain(0, np.array(tokens, np.int32), Source.CONTEXT)
    wrong = 1 if tokens[0] != 1 else 2
    parents = np.array([-1, 0, 0, *range(2, len(tokens) + 1)], np.int32)
    return DraftTree(np.array([0, wrong, *along.tokens[1:]], np.int32), parents, np.zeros(len(tokens) + 2, np.int8))


def test_the_given_rows_are_not_touched() -> None:
    request = request_of(replace(NONE, logit_bias={5: 100.0}))
    logits = torch.from_numpy(logits_of(2))
    given = logits.clone()
    sampler = ProcessedSampler(CpuSampler(law_of(request.sampling), 3), LogitsProcessors(request, VOCAB_SIZE))
    assert verify(root_only(0), logits, sampler).tokens.tolist() == [5]
    assert torch.equal(logits, given)
    assert CpuSampler(law_of(NONE), 3).draw(logits[0], 0) == int(given[0].argmax()) != 5


@pytest.mark.parametrize("token", [-1, VOCAB_SIZE])
@pytest.mark.parametrize("name", ["logit_bias", "bad_words", "allowed_token_ids"])
def test_ids_of_no_vocabulary_are_refused_by_their_field(name: str, token: int) -> None:
    asked = {"logit_bias": {token: 1.0}, "bad_words": ((1, token),), "allowed_token_ids": (1, token)}
    with pytest.raises(RequestRejected, match=f"{name} holds token ids outside 0..66"):
        TokenLists.of(replace(NONE, **{name: asked[name]}), VOCAB_SIZE)


def test_lists_are_made_once_for_the_choices_of_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    recent, made = RecentLists(VOCAB_SIZE), list[SamplingParams]()

    def make(asked: SamplingParams, _: int) -> TokenLists:
        made.append(asked)
        return TokenLists(*(None,) * 5)  # type: ignore[arg-type]

    monkeypatch.setattr(TokenLists, "of", make)
    choices = [replace(EVERYTHING, seed=seed) for seed in range(5)]
    assert len({recent.of(choice) for choice in choices}) == 1
    assert len({recent.of(replace(NONE, seed=seed)) for seed in range(20)}) == 1  # nor do they push that one out
    assert len({recent.of(choice) for choice in choices}) == len(made) == 1
    others = [replace(EVERYTHING, bad_words=((number, 2),)) for number in range(20)]
    assert len({recent.of(other) for other in others}) == 20
    assert len(made) == 21
    recent.of(choices[0])
    assert len(made) == 22  # that of the first call was forgotten
