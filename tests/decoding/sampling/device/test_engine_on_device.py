"""The engine whose sampler is the device's gives every request the tokens that it gets of the host's."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from decoding.core.events import Failed, Finished, PromptLogprobs, Tokens
from decoding.core.grammar import Grammar
from decoding.core.request import Request
from decoding.core.sampling_params import SamplingParams
from decoding.core.speculation_params import SpeculationParams
from decoding.core.token_logprobs import TokenLogprobs
from decoding.engine.engine import Engine
from decoding.sampling.device.device_sampler import DeviceSampler
from tests.asking import encode

PROMPT = encode("def add(a, b):\n    return a + b\n\ndef sub(a, b):\n    return a - b\n\n" * 2)
NUM_TOKENS = 10
ASKED = {
    "greedy": SamplingParams(max_tokens=NUM_TOKENS, temperature=0.0),
    "sampled": SamplingParams(max_tokens=NUM_TOKENS, temperature=0.8, top_p=0.9, seed=1),
    "penalised": SamplingParams(
        max_tokens=NUM_TOKENS, temperature=0.8, top_k=40, presence_penalty=0.6, repetition_penalty=1.2, seed=2
    ),
    "grammar": SamplingParams(max_tokens=NUM_TOKENS, temperature=0.8, seed=3, grammar=Grammar("regex", "[a-c ]{12}")),
    "logprobs": SamplingParams(max_tokens=NUM_TOKENS, temperature=0.0, logprobs=3, prompt_logprobs=2),
}
Reply = tuple[list[int], list[TokenLogprobs | None]]


def replies(engine: Engine) -> tuple[dict[str, Reply], int]:
    """What each request is given in one batch, with its own and its prompt's log probabilities; how many drafted tokens
    were accepted."""
    requests = {
        name: Request(
            id=name,
            prompt=PROMPT + np.int32(name == "logprobs"),  # whose rows nobody has run
            sampling=sampling,
            speculation=SpeculationParams(method="spine", max_nodes=5),
            eos_token_ids=engine.model.eos_token_ids,
            session_id=name,
        )
        for name, sampling in ASKED.items()
    }
    for request in requests.values():
        engine.add(request)
    told: dict[str, list[TokenLogprobs | None]] = {name: [] for name in requests}
    accepted = 0
    while engine.has_work:
        result = engine.step()
        assert not result.of(Failed)
        for scored in result.of(PromptLogprobs):
            told[scored.request_id] += scored.logprobs
        for emitted in result.of(Tokens):
            told[emitted.request_id] += emitted.logprobs or []
        accepted += sum(finished.stats.counts.accepted for finished in result.of(Finished))
        engine.sessions.delete("", "greedy")
    return {name: (request.output.tolist(), told[name]) for name, request in requests.items()}, accepted


@pytest.mark.skipif(torch.cuda.is_available(), reason="interpreted kernels are for machines without a GPU")
def test_every_request_gets_the_hosts_tokens(gosling: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    on_host, _ = replies(gosling)
    monkeypatch.setattr(gosling, "sampler", DeviceSampler())
    on_device, accepted = replies(gosling)
    for name, (tokens, logprobs) in on_device.items():
        assert tokens == on_host[name][0], name
        for ours, theirs in zip(logprobs, on_host[name][1], strict=True):
            assert (ours is None) == (theirs is None)
            if ours is not None and theirs is not None:
                assert (ours.token_id, ours.rank) == (theirs.token_id, theirs.rank)
                assert [ours.logprob] + [each for _, each in ours.top] == pytest.approx(
                    [theirs.logprob] + [each for _, each in theirs.top], abs=1e-5
                )
    assert accepted > 0
    assert sum(len(tokens) for tokens, _ in on_device.values()) > 3 * NUM_TOKENS
