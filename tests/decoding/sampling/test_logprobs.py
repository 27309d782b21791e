"""Log probabilities are those of the model's own distribution, the same for every way of drafting."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from decoding.core.sampling_params import SamplingParams
from decoding.engine.engine import Engine
from decoding.sampling.logprobs import token_logprobs
from tests.asking import ask, encode


def test_values_ranks_and_tops_are_those_of_log_softmax() -> None:
    torch.manual_seed(0)
    rows = torch.randn(7, 3000) * 4
    tokens = np.array([0, 5, 2999, 17, 4, 3, 2], np.int32)
    tokens[0] = int(rows[0].argmax())
    expected = torch.log_softmax(rows.double(), -1)
    for place, scored in enumerate(token_logprobs(rows, tokens, 5)):
        assert scored.token_id == tokens[place]
        assert scored.logprob == pytest.approx(expected[place, tokens[place]].item(), abs=1e-4)
        assert scored.rank == int((rows[place] > rows[place, tokens[place]]).sum()) + 1
        best = expected[place].topk(5)
        assert [token for token, _ in scored.top] == best.indices.tolist()
        assert [value for _, value in scored.top] == pytest.approx(best.values.tolist(), abs=1e-4)
    assert token_logprobs(rows, tokens, 0)[0].top == ()
    assert token_logprobs(rows, tokens, 0)[0].rank == 1


def test_a_token_has_the_same_values_whether_others_are_told_of_or_not() -> None:
    rows_RV = torch.randn(5, 300, generator=torch.Generator().manual_seed(4))
    tokens = np.array([0, 299, 7, 7, int(rows_RV[4].argmax())], np.int32)
    alone, among = token_logprobs(rows_RV, tokens, 0), token_logprobs(rows_RV, tokens, 3)
    assert [(each.token_id, each.logprob, each.rank) for each in alone] == [
        (each.token_id, each.logprob, each.rank) for each in among
    ]
    assert alone[4].rank == 1
    assert all(each.top == () for each in alone)


def test_a_row_alone_has_the_values_it_has_among_others() -> None:
    torch.manual_seed(1)
    rows = torch.randn(5, 300)
    tokens = np.arange(5, dtype=np.int32)
    alone = [token_logprobs(rows[place : place + 1], tokens[place : place + 1], 3)[0] for place in range(5)]
    assert token_logprobs(rows, tokens, 3) == alone


def test_a_reply_scored_as_a_prompt_has_the_same_values(gosling: Engine) -> None:
    if not gosling.model.is_exact:
        pytest.skip("this processor does not give row-invariant arithmetic")
    prompt = encode("def total(prices):\n")
    asked = SamplingParams(max_tokens=25, temperature=0.7, logprobs=2, logit_bias={20: 3.0}, ignore_eos=True, seed=3)
    reply = ask(gosling, prompt, asked, "spine")
    whole = np.concatenate((prompt, np.array(reply.tokens, np.int32)))
    again = ask(gosling, whole, SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=2), "recycle")
    assert again.prompt_logprobs is not None
    assert again.prompt_logprobs[0] is None
    assert len(again.prompt_logprobs) == len(whole)
    assert again.prompt_logprobs[len(prompt) :] == reply.logprobs


def test_a_long_prompt_is_scored_once_and_whole(gosling: Engine) -> None:
    prompt = np.resize(encode("def total(prices):\n    return sum(prices)\n"), 600)  # several chunks
    for method in ("none", "spine"):
        reply = ask(gosling, prompt, SamplingParams(max_tokens=3, temperature=0.0, prompt_logprobs=0), method)
        assert reply.prompt_logprobs is not None
        assert [scored.token_id for scored in reply.prompt_logprobs if scored] == prompt[1:].tolist()
    single = ask(gosling, prompt[:1], SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=1))
    assert single.prompt_logprobs == [None]
