"""A block head names what the published code says of the target's hidden states, and replies are the plain ones."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from decoding.cache.block_pool import BLOCK_LEN
from decoding.core.grammar import Grammar
from decoding.core.request import Request
from decoding.core.sampling_params import SamplingParams
from decoding.drafting.block.block_drafting import BlockDrafting
from decoding.drafting.block.block_model import BlockModel
from decoding.drafting.block.checkpoint import load_block
from decoding.drafting.block.network import BlockHead
from decoding.drafting.eagle import loaded_head
from decoding.engine.start import start_engine
from tests.blocks import BLOCK, Published, corrected_fields, fields_of, new_block, trained_block, write_block
from tests.head_bench import HeadedEngine, assert_some_accepted_and_some_rejected
from tests.models import tiny
from tests.pairs import CONFIG, GIVEN, GREEDY, SAMPLED, finish, prompt_of, request_of, target_of, write_tokenizer

METHODS = {"auto": {}, "dynamic": {"max_nodes": 12}, "eagle": {}, "fixed": {"max_depth": 3}, "linear": {"max_depth": 4}}
KINDS: dict[str, dict[str, Any]] = {
    "all see all": fields_of(),
    "causal": fields_of(is_causal=True),
    "corrected by the token before": corrected_fields(),
    "windows": fields_of(layer_types=["sliding_attention", "full_attention"], sliding_window=7, is_causal=False),
    "scales, biases and rotary base": fields_of(
        {"input_embedding_scale": 3.0, "output_multiplier": 0.4, "final_logit_softcapping": 2.0},
        attention_bias=True,
        rope_theta=300.0,
    ),
}


@pytest.fixture(autouse=True, scope="module")
def keep_numbers() -> Any:
    """The head's weights stay as the published code has them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loaded_head, "can_round_to_int8", lambda *_: False)
        yield


class Bench(HeadedEngine):
    def __init__(self, head: BlockHead, folder: Path, **options: object) -> None:
        target = target_of("llama")
        self.published = Published(write_block(head, folder), tiny("llama"))
        write_tokenizer(folder)
        config = replace(CONFIG, model=str(folder), **options)  # type: ignore[arg-type]
        model = BlockModel(load_block(folder, target), target)
        super().__init__(start_engine(target, config, draft_model=model, kept=GIVEN))

    def chain(self, name: str, prompt: Any, **sampling: object) -> Request:
        """A request whose chains are recorded."""
        params = replace(GREEDY, **sampling)  # type: ignore[arg-type]
        return self.record(request_of(name, prompt, params, "linear", max_depth=BLOCK))

    def num_checked(self) -> tuple[int, int]:
        """How many steps drafted a chain, each as the published code says, and how many drafted nothing."""

        def shortfalls(tokens: NDArray[np.int32], chain: list[int]) -> Iterator[float]:
            for token, said_V in zip(chain, self.published.says(tokens, chain), strict=False):
                yield float(said_V.max() - said_V[token])

        return self.num_checked_by(shortfalls)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(deepcopy(trained_block("llama")), tmp_path_factory.mktemp("head"))


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_head_names_what_the_published_code_does(kind: str, tmp_path: Path) -> None:
    bench = Bench(new_block(tiny("llama"), KINDS[kind]), tmp_path)
    assert isinstance(bench.engine.draft_model, BlockDrafting)
    for seed, length in enumerate((2, 15, 17, 40)):  # together
        bench.chain(f"{seed}", prompt_of(length, seed), max_tokens=12)
    finish(bench.engine)
    drafted, plain = bench.num_checked()
    assert drafted > 30
    assert plain <= 4  # in the step that runs the prompt, whose features nobody knows yet


def test_who_finds_a_prompt_or_gave_up_its_room_names_the_same(tmp_path: Path) -> None:
    bench = Bench(
        deepcopy(trained_block("llama")), tmp_path, kv_slots=14 * BLOCK_LEN, max_model_len=None, max_running=3
    )
    for seed in range(3):
        bench.chain(f"{seed}", prompt_of(40, seed), max_tokens=45)
    ended, _ = finish(bench.engine)
    assert sum(stats.preemptions for stats in ended.values()) > 0
    drafted, _ = bench.num_checked()
    assert drafted > 40
    first = bench.chain("first", prompt_of(50, 7))
    finish(bench.engine)
    bench.chain("again", np.concatenate((first.tokens, prompt_of(9, 8))))
    ended, _ = finish(bench.engine)
    assert ended["again"].cached_tokens >= 49 // BLOCK_LEN * BLOCK_LEN
    drafted, _ = bench.num_checked()
    assert drafted > 20


def test_a_prompt_in_pieces_and_one_of_a_single_token_are_followed(tmp_path: Path) -> None:
    bench = Bench(deepcopy(trained_block("llama")), tmp_path, max_batch_rows=40)
    for seed, length in enumerate((1, 150)):
        bench.chain(f"{seed}", prompt_of(length, seed))
    finish(bench.engine)
    assert bench.num_checked()[0] > 20


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_every_method_gives_the_plain_tokens(bench: Bench, temperature: float) -> None:
    sampling = replace(GREEDY if temperature == 0 else SAMPLED, temperature=temperature)
    drafted = [
        request_of(f"{method} {seed}", prompt_of(40, seed), replace(sampling, seed=seed), method, **options)
        for method, options in METHODS.items()
        for seed in (1, 2)
    ]
    ended = bench.assert_plain(*drafted)
    for request in drafted:
        assert request.speculation.method in ended[request.id].steps_by_method
    assert_some_accepted_and_some_rejected([each for name, each in ended.items() if "auto" not in name])


def test_a_block_that_the_token_before_corrects_gives_the_plain_tokens(tmp_path: Path) -> None:
    bench = Bench(new_block(tiny("llama"), corrected_fields()), tmp_path)
    drafted = [
        request_of(f"{method} {place}", prompt_of(40, 3), sampling, method, **options)
        for method, options in METHODS.items()
        for place, sampling in enumerate((GREEDY, SAMPLED))
    ]
    ended = bench.assert_plain(*drafted)
    assert sum(each.counts.drafted_by_source.get("draft_model", 0) for each in ended.values()) > 100


def test_one_forward_makes_a_tree_and_no_more(bench: Bench) -> None:
    for method in ("dynamic", "eagle"):
        request = request_of("one", prompt_of(40, 5), SAMPLED, method, max_nodes=16)
        bench.engine.add(request)
        _, steps = finish(bench.engine)
        asked = [each for each in steps if each.phase_seconds["draft_model"] > 0]
        assert len(asked) >= len(steps) - 3, "each step but those of the prompt and the last tokens"


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


class BreakingHead(BlockModel):
    """Gives numbers that are none in the `countdown`-th forward from now."""

    countdown = 0

    def name(self, *asked: Any) -> Any:
        self.countdown -= 1
        return super().name(*asked) * (float("nan") if self.countdown == 0 else 1)


def test_numbers_that_are_none_are_given_up_and_the_tokens_stay(tmp_path: Path) -> None:
    target = target_of("llama")
    write_block(deepcopy(trained_block("llama")), tmp_path)
    head = BreakingHead(load_block(tmp_path, target), target)
    engine = start_engine(target, CONFIG, draft_model=head, kept=GIVEN)
    plain, drafted = (request_of(name, prompt_of(30), method=name) for name in ("none", "eagle"))
    engine.add(plain)
    finish(engine)
    engine.add(drafted)
    head.countdown = 4
    ended, _ = finish(engine)
    assert head.countdown == 0, "nothing broke, or the head was asked again"
    assert drafted.output.tolist() == plain.output.tolist()
    assert ended["eagle"].choice == "fallback"
