"""Layers that carry a state: drafted or plain, alone or among others, found, preempted or resumed, the same tokens."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from decoding.cache.block_pool import BLOCK_LEN
from decoding.core.request import Request
from decoding.core.sampling_params import SamplingParams
from decoding.core.speculation_params import SpeculationParams
from decoding.core.tree import IntArray
from decoding.engine.engine import Engine
from decoding.engine.start import start_engine
from decoding.model.target_model import TargetModel
from tests.models import tiny
from tests.pairs import CONFIG, GIVEN, finish, prompt_of, reply, request_of

# One for each kind of state: gated delta rule (and experts), Kimi's, Mamba-2, Mamba-1, a short convolution.
FAMILIES = ("qwen3_next", "kimi_linear", "bamba", "jamba", "lfm2")
OTHERS = ("qwen3_5_text", "olmo_hybrid", "granitemoehybrid", "falcon_h1", "nemotron_h", "mamba2", "mamba")
METHODS = ("spine", "stand", "auto", "lookup", "dynamic")
BUDGET = {"max_nodes": 8}  # asked for, so that what is drafted does not hang on what a step costs
LAWS = {
    "greedy": SamplingParams(max_tokens=24, temperature=0.0, ignore_eos=True),
    "sampled": SamplingParams(max_tokens=24, temperature=0.7, seed=5, ignore_eos=True),
}


def draft_of(model: PreTrainedModel) -> TargetModel:
    """A layer of attention between a model's own embedding and head: now and then it says what the model says."""
    draft = tiny("llama", num_hidden_layers=1)
    with torch.no_grad():
        draft.get_input_embeddings().weight.copy_(model.get_input_embeddings().weight)
        draft.get_output_embeddings().weight.copy_(model.get_output_embeddings().weight)
    return TargetModel.from_model(draft, CONFIG)


@dataclass(frozen=True)
class Family:
    """A hybrid target, beside it a draft model whose layers all attend. replies: plain ones that ran alone."""

    engine: Engine
    draft: TargetModel
    replies: dict[str, list[int]] = field(default_factory=dict)

    def alone(self, prompt: IntArray, law: SamplingParams) -> list[int]:
        """The plain reply of an engine that remembers nothing, and has forgotten it again."""
        asked = f"{prompt.tolist()} {law}"
        self.engine.start_afresh(0.0)
        if asked not in self.replies:
            self.replies[asked] = reply(self.engine, request_of("alone", prompt, law))
            self.engine.start_afresh(0.0)
        return self.replies[asked]


@cache
def family_of(model_type: str) -> Family:
    model = tiny(model_type)
    draft, target = draft_of(model), TargetModel.from_model(model, CONFIG)
    if not target.is_exact:
        pytest.skip("this processor does not give row-invariant arithmetic")
    return Family(start_engine(target, CONFIG, draft_model=draft, kept=GIVEN), draft)


def families(*quick: str) -> list[Any]:
    """All of them, the others slow."""
    return [pytest.param(each, marks=() if each in quick else pytest.mark.slow) for each in (*FAMILIES, *OTHERS)]


# What is found again and given up is a pool's: with the largest state and with the smallest.
pooled = pytest.mark.parametrize("family", families("qwen3_next", "lfm2"), indirect=True)


@pytest.fixture(scope="module", params=families(*FAMILIES))
def family(request: pytest.FixtureRequest) -> Family:
    return family_of(request.param)


def twice(seed: int) -> IntArray:
    """A prompt that says everything twice, so that much is drafted."""
    return np.tile(prompt_of(20, seed), 2)


@pytest.mark.parametrize("law", LAWS)
def test_a_drafted_reply_is_the_plain_one(family: Family, law: str) -> None:
    plain, num_accepted, num_drafted = family.alone(twice(0), LAWS[law]), 0, 0
    for method in METHODS:
        drafted = request_of(method, twice(0), LAWS[law], method, **BUDGET)
        family.engine.add(drafted)
        ended, _ = finish(family.engine)
        assert drafted.output.tolist() == plain, method
        counts = ended[method].counts
        assert method not in ("dynamic", "auto") or counts.drafted_by_source["draft_model"] > 0, method
        num_accepted += counts.accepted
        num_drafted += counts.drafted
    assert num_drafted > num_accepted > 0


def test_eight_at_once_in_chunks_are_answered_as_alone(family: Family) -> None:
    prompts = [prompt_of(9 + 29 * place, place) for place in range(8)]
    laws = [replace(LAWS["greedy" if place % 2 else "sampled"], max_tokens=12) for place in range(8)]
    alone = [family.alone(*each) for each in zip(prompts, laws, strict=True)]
    together = [
        request_of(f"{place}", prompt, law, ("none", *METHODS)[place % 6], **BUDGET)
        for place, (prompt, law) in enumerate(zip(prompts, laws, strict=True))
    ]
    for request in together:
        family.engine.add(request)
    ended, _ = finish(family.engine)
    assert sum(stats.prefill_chunks for stats in ended.values()) > 0
    assert [request.output.tolist() for request in together] == alone


@pooled
def test_a_prompt_is_found_from_its_last_whole_block_on(family: Family) -> None:
    prompt = prompt_of(100, 7)
    plain = family.alone(prompt, LAWS["sampled"])
    assert reply(family.engine, request_of("first", prompt, LAWS["sampled"])) == plain
    assert family.engine.stats().state_checkpoints == 1
    again = request_of("again", prompt, LAWS["sampled"], "auto", **BUDGET)
    family.engine.add(again)
    ended, _ = finish(family.engine)
    assert again.output.tolist() == plain
    assert ended["again"].cached_tokens == 96


@pooled
def test_what_two_prompts_share_is_found_by_the_third(family: Family) -> None:
    common, found = prompt_of(50, 8), []
    prompts = [np.concatenate((common, prompt_of(30, 20 + place))) for place in range(3)]
    last = family.alone(prompts[2], LAWS["greedy"])
    for place, prompt in enumerate(prompts):
        request = request_of(f"{place}", prompt, LAWS["greedy"])
        family.engine.add(request)
        ended, _ = finish(family.engine)
        found.append(ended[f"{place}"].cached_tokens)
    assert found == [0, 0, 48]
    assert request.output.tolist() == last


@pooled
def test_choices_of_one_call_share_their_prompts_state(family: Family) -> None:
    prompt = prompt_of(80, 9)
    laws = [replace(LAWS["sampled"], seed=seed, max_tokens=12) for seed in range(3)]
    alone = [family.alone(prompt, law) for law in laws]
    choices = [request_of(f"{place}", prompt, law, "auto", **BUDGET) for place, law in enumerate(laws)]
    for choice in choices:
        family.engine.add(choice)
    ended, _ = finish(family.engine)
    assert sorted(stats.cached_tokens for stats in ended.values()) == [0, 64, 64]
    assert [choice.output.tolist() for choice in choices] == alone


def test_a_reply_is_resumed_after_any_of_its_tokens(family: Family) -> None:
    """As after the death of a worker: the next one has seen nothing of the prompt."""
    prompt, law = twice(0), LAWS["sampled"]
    for num_there, method in ((1, "dynamic"), (7, "auto"), (20, "dynamic")):
        plain = family.alone(prompt, law)
        resumed = Request(
            id="resumed",
            prompt=prompt,
            sampling=law,
            speculation=SpeculationParams(method=method, max_nodes=8),
            resumed=np.array(plain[:num_there], np.int32),
        )
        family.engine.add(resumed)
        finish(family.engine)
        assert resumed.output.tolist() == plain


@pooled
def test_a_conversation_runs_what_each_turn_adds(family: Family) -> None:
    """The tenth turn brings no more tokens to the model than the first did, with its prompt of twice a turn's."""
    family.engine.start_afresh(0.0)
    law, history, rows = replace(LAWS["greedy"], max_tokens=8), prompt_of(40, 0), []
    for turn in range(10):
        history = np.concatenate((history, prompt_of(8, 50 + turn)))
        request = request_of(f"{turn}", history, law, ("none", "auto", "dynamic")[turn % 3], **BUDGET)
        family.engine.add(request)
        ended, steps = finish(family.engine)
        rows.append(sum(step.prefill_rows for step in steps))
        assert ended[f"{turn}"].cached_tokens == len(history) - 1 - rows[-1]
        history = request.tokens.copy()
    assert max(rows[1:]) <= rows[0]
    assert request.output.tolist() == family.alone(request.prompt, law)


def assert_replies_stay_where_room_is_short(family: Family, *, prefix_cache: bool) -> None:
    prompts, law = [prompt_of(40, place) for place in range(5)], replace(LAWS["sampled"], max_tokens=12)
    alone = [family.alone(prompt, law) for prompt in prompts]
    config = replace(
        CONFIG, kv_slots=14 * BLOCK_LEN, max_model_len=None, max_running=4, max_batch_rows=64, prefix_cache=prefix_cache
    )
    engine = start_engine(family.engine.model, config, draft_model=family.draft, kept=GIVEN)
    requests = [
        request_of(f"{place}", prompt, law, ("auto", "dynamic")[place % 2], **BUDGET)
        for place, prompt in enumerate(prompts)
    ]
    for request in requests:
        engine.add(request)
    ended, _ = finish(engine, with_guest=True)
    assert sum(stats.preemptions for stats in ended.values()) > 0
    assert [request.output.tolist() for request in requests] == alone
    states = engine.pool.states
    assert states is not None
    assert states.num_made <= 2 * engine.limits.max_running + states.max_checkpoints


@pooled
def test_whoever_gives_up_its_room_says_the_same(family: Family) -> None:
    assert_replies_stay_where_room_is_short(family, prefix_cache=True)


def test_whoever_gives_up_its_room_says_the_same_where_nothing_is_found_again() -> None:
    assert_replies_stay_where_room_is_short(family_of("lfm2"), prefix_cache=False)
