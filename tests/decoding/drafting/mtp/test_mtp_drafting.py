"""An MTP head drafts what the published code says of the target's hidden states, and replies are the plain ones."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from packaging.version import Version
from transformers import AutoModelForCausalLM
from transformers.cache_utils import MtpCache
from transformers.modeling_layers import MtpModel

from decoding.cache.block_pool import BLOCK_LEN
from decoding.core.grammar import Grammar
from decoding.core.sampling_params import SamplingParams
from decoding.drafting.eagle import loaded_head
from decoding.drafting.eagle.head_drafting import HeadDrafting
from decoding.engine.start import load_engine, start_engine
from tests.head_bench import HeadedEngine, assert_some_accepted_and_some_rejected
from tests.mtp import FAMILIES, Mtp, mtp_of
from tests.pairs import CONFIG, GIVEN, GREEDY, SAMPLED, finish, prompt_of, request_of, write_tokenizer

LENGTH = 4  # of the chains
METHODS = {"auto": {}, "dynamic": {"max_nodes": 12}, "eagle": {}, "fixed": {"max_depth": 3}, "linear": {"max_depth": 4}}


class Bench(HeadedEngine):
    def __init__(self, mtp: Mtp, folder: Path) -> None:
        self.mtp = mtp
        config = replace(CONFIG, model=str(write_tokenizer(mtp.write(folder))), device="cpu", dtype="float32")
        super().__init__(load_engine(config, kept=GIVEN))

    def chain(self, name: str, length: int, **sampling: object) -> None:
        """A request whose chains are recorded."""
        sampling_params = replace(GREEDY, **sampling)  # type: ignore[arg-type]
        self.record(request_of(name, prompt_of(length, length), sampling_params, "linear", max_depth=LENGTH))


QUICK = ("deepseek_v3", "glm4_moe", "qwen3_5_text", "mimo")  # the others compute what these do, together


def families(*quick: str) -> list[Any]:
    """All of them, the others slow."""
    return [pytest.param(each, marks=() if each in quick else pytest.mark.slow) for each in FAMILIES]


# What is found again and given up is a pool's: with attention alone, and with layers that carry a state.
pooled = pytest.mark.parametrize("bench", families("deepseek_v3", "qwen3_5_text"), indirect=True)


@pytest.fixture(scope="module", params=families(*QUICK))
def bench(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Bench:
    with pytest.MonkeyPatch.context() as patch:  # its weights stay as the published code has them
        patch.setattr(loaded_head, "can_round_to_int8", lambda *_: False)
        return Bench(mtp_of(request.param), tmp_path_factory.mktemp("model"))


def test_every_chain_is_what_the_published_code_says(bench: Bench) -> None:
    assert isinstance(bench.engine.draft_model, HeadDrafting)
    for length in (1, 2, 15, 17, 40):
        bench.chain(f"{length}", length)
    finish(bench.engine)

    drafted, _ = bench.num_checked_by(bench.mtp.shortfalls)
    assert drafted > 30


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_every_method_gives_the_plain_tokens(bench: Bench, temperature: float) -> None:
    stats = []
    for method, options in METHODS.items():
        sampling = replace(GREEDY if temperature == 0 else SAMPLED, temperature=temperature)
        drafted = [request_of(f"{method} {seed}", prompt_of(40, seed), sampling, method, **options) for seed in (1, 2)]
        ended = bench.assert_plain(*drafted)
        stats += [ended[each.id] for each in drafted]
        assert {name for each in stats[-2:] for name in each.steps_by_method} >= {method}
    assert_some_accepted_and_some_rejected(stats)


@pooled
def test_a_prompt_that_is_found_and_a_grammar_give_the_plain_tokens(bench: Bench) -> None:
    grammar = SamplingParams(
        max_tokens=40, temperature=0.7, seed=5, grammar=Grammar("regex", "([A-z -/]{2,9}[0-9]{1,3}){4,9}")
    )
    first = request_of("first", prompt_of(50, 7), SAMPLED, "eagle")
    bench.assert_plain(first)
    prompt = np.concatenate((first.tokens, prompt_of(9, 8)))
    again = request_of("again", prompt, SAMPLED, "eagle")
    bound = request_of("bound", prompt, grammar, "dynamic", max_nodes=16)
    ended = bench.assert_plain(again, bound)
    assert ended["again"].cached_tokens >= 49 // BLOCK_LEN * BLOCK_LEN
    assert ended["bound"].counts.drafted > 0


@pooled
def test_short_of_room_replies_are_the_plain_tokens(bench: Bench) -> None:
    drafting = bench.engine.draft_model
    assert isinstance(drafting, HeadDrafting)
    config = replace(CONFIG, kv_slots=14 * BLOCK_LEN, max_model_len=None, max_running=4, max_batch_rows=64)
    engine = start_engine(bench.engine.model, config, draft_model=drafting.model, kept=GIVEN)
    drafted = [
        request_of(f"{seed}", prompt_of(40, seed), SAMPLED, method, max_nodes=12)
        for seed, method in enumerate(("dynamic", "eagle", "auto", "dynamic", "eagle"))
    ]
    for request in drafted:
        engine.add(request)
    ended, _ = finish(engine, with_guest=True)
    assert sum(stats.preemptions for stats in ended.values()) > 0
    assert_some_accepted_and_some_rejected(list(ended.values()))
    plain = [request_of(f"plain {each.id}", each.prompt, each.sampling) for each in drafted]
    bench.run(*plain)
    assert [each.output.tolist() for each in drafted] == [each.output.tolist() for each in plain]


@pytest.mark.parametrize("model_type", ["deepseek_v3", "glm4_moe"])
def test_the_published_code_is_that_of_transformers_where_it_has_one(
    model_type: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if Version(transformers.__version__) < Version("5.19"):
        pytest.skip("transformers' own MTP modules do not run by themselves before 5.19")
    mtp = mtp_of(model_type)
    model = AutoModelForCausalLM.from_pretrained(mtp.write(tmp_path), dtype=torch.float32)
    last = model.config.num_hidden_layers  # transformers looks for the published models' numbers
    monkeypatch.setattr(model, "_keys_to_ignore_on_load_unexpected", [rf"model\.layers\.{last}\..*"])
    theirs = MtpModel.from_pretrained(model).eval()
    ids_1N = torch.from_numpy(prompt_of(20))[None].long()
    run = partial(theirs, attention_mask=None, mtp_cache=MtpCache(config=model.config.get_mtp_config()))
    with torch.no_grad():
        hidden_1NE = model(input_ids=ids_1N, output_hidden_states=True, use_cache=False).hidden_states[-1][:, :-1]
        _, said_11V, _ = run(
            input_ids=ids_1N[:, 1:], last_hidden_states=hidden_1NE, position_ids=torch.arange(1, 20)[None]
        )
    assert torch.allclose(said_11V[0, 0], next(mtp.says(prompt_of(20))), atol=1e-4)
