"""Draft models whose layers carry a state: they say what they would say of each path alone, and change no reply."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from decoding.cache.block_pool import BLOCK_LEN
from decoding.engine.engine import Engine
from decoding.engine.start import start_engine
from decoding.model.target_model import TargetModel
from tests.models import tiny
from tests.pairs import CONFIG, GIVEN, GREEDY, SAMPLED, draft_of, finish, prompt_of, reply, request_of, target_of

FAMILIES = ("lfm2", "qwen3_5_text", pytest.param("mamba", marks=pytest.mark.slow))
METHODS = {
    "dynamic": {"max_nodes": 8},
    "linear": {"max_depth": 4},
    "fixed": {"branching": 2, "max_depth": 3, "max_nodes": 8},
    "auto": {"max_nodes": 8},
}
LAWS = {"greedy": replace(GREEDY, max_tokens=20), "sampled": replace(SAMPLED, max_tokens=20)}


def target(model_type: str) -> TargetModel:
    found = target_of(model_type)
    if not found.is_exact:
        pytest.skip("this processor does not give row-invariant arithmetic")
    return found


@pytest.fixture(scope="module", params=FAMILIES)
def engine(request: pytest.FixtureRequest) -> Engine:
    """Its draft model is the target with noise."""
    return start_engine(target(request.param), CONFIG, draft_model=draft_of(request.param), kept=GIVEN)


@pytest.mark.parametrize("law", LAWS)
def test_drafted_replies_are_the_plain_ones_alone_and_together(engine: Engine, law: str) -> None:
    engine.start_afresh(0.0)
    prompts = [prompt_of(30 + place, place) for place in range(2)]
    plain = [reply(engine, request_of("plain", prompt, LAWS[law])) for prompt in prompts]
    together = []
    for method, options in METHODS.items():
        for place, prompt in enumerate(prompts):
            together.append(request_of(f"{method} {place}", prompt, LAWS[law], method, **options))
        alone = request_of(method, prompts[0], LAWS[law], method, **options)
        engine.add(alone)
        ended, _ = finish(engine)
        assert alone.output.tolist() == plain[0], method
        assert ended[method].counts.drafted_by_source["draft_model"] > 0, method
    for request in together:
        engine.add(request)
    ended, _ = finish(engine)
    assert [request.output.tolist() for request in together] == plain * len(METHODS)
    drafted, accepted = (sum(getattr(each.counts, name) for each in ended.values()) for name in ("drafted", "accepted"))
    assert drafted > accepted > 0


def test_a_draft_model_that_is_the_target_is_never_wrong() -> None:
    """So what it carries is at each node what the node's path leads to, in any round, and after what was accepted."""
    model = target("qwen3_5_text")
    engine = start_engine(model, CONFIG, draft_model=TargetModel.from_model(tiny("qwen3_5_text"), CONFIG), kept=GIVEN)
    for place, prompt in enumerate((prompt_of(7, 1), prompt_of(50, 2), prompt_of(7, 1))):
        request = request_of(f"{place}", prompt, LAWS["greedy"], "linear", max_depth=3, max_nodes=3)
        engine.add(request)
        ended, _ = finish(engine)
        counts = ended[f"{place}"].counts
        assert counts.accepted >= counts.drafted - 3 > 0, "but for a draft that goes beyond the reply's end"
        tree = request_of(f"tree {place}", prompt, LAWS["greedy"], "fixed", branching=2, max_depth=3, max_nodes=14)
        engine.add(tree)
        ended, _ = finish(engine)
        assert ended[f"tree {place}"].target_forwards <= 2 + LAWS["greedy"].max_tokens // 4
        assert tree.output.tolist() == request.output.tolist()


def test_a_draft_model_with_states_reads_again_what_was_given_up() -> None:
    engine = start_engine(
        target("lfm2"),
        replace(CONFIG, kv_slots=14 * BLOCK_LEN, max_model_len=None, max_running=4, max_batch_rows=64),
        draft_model=draft_of("lfm2"),
        kept=GIVEN,
    )
    prompts = [prompt_of(40, place) for place in range(4)]
    requests = [request_of(f"{place}", prompt, LAWS["sampled"], "dynamic") for place, prompt in enumerate(prompts)]
    for request in requests:
        engine.add(request)
    ended, _ = finish(engine, with_guest=True)
    assert sum(stats.preemptions for stats in ended.values()) > 0
    alone = [reply(engine, request_of("alone", prompt, LAWS["sampled"])) for prompt in prompts]
    assert [request.output.tolist() for request in requests] == alone


def test_an_attention_model_may_be_drafted_for_by_one_with_states() -> None:
    draft = tiny("mamba2")
    model = tiny("llama")
    draft.get_input_embeddings().weight.data.copy_(model.get_input_embeddings().weight)
    draft.get_output_embeddings().weight.data.copy_(model.get_output_embeddings().weight)
    engine = start_engine(
        TargetModel.from_model(model, CONFIG), CONFIG, draft_model=TargetModel.from_model(draft, CONFIG), kept=GIVEN
    )
    prompt = np.tile(prompt_of(20, 0), 2)
    plain = reply(engine, request_of("plain", prompt, LAWS["greedy"]))
    drafted = request_of("drafted", prompt, LAWS["greedy"], "dynamic", max_nodes=8)
    engine.add(drafted)
    ended, _ = finish(engine)
    assert drafted.output.tolist() == plain
    assert ended["drafted"].counts.drafted_by_source["draft_model"] > 0
    assert engine.stats().state_bytes == 0
