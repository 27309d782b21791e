"""What a head drafts is what its network says of the target's features, whoever ran the rows it reads.

Every tree of a chain is compared with the plain network, run from nothing on features of transformers' own forward.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch.nn import functional
from transformers import PreTrainedModel

from decoding.cache.batch import StepBatch
from decoding.cache.block_pool import BLOCK_LEN
from decoding.core.request import Request
from decoding.costs.price import DraftBudget, NodePrice
from decoding.drafting.eagle import loaded_head
from decoding.drafting.eagle.head_drafting import TreeRows
from decoding.drafting.eagle.head_model import HeadModel
from decoding.drafting.eagle.network import Attend, EagleHead
from decoding.drafting.one_tree.one_tree import OneTree
from decoding.engine.start import start_engine
from tests.head_bench import HeadedEngine
from tests.heads import features_of, fields_of, new_head, trained_head
from tests.models import tiny
from tests.pairs import CONFIG, GIVEN, GREEDY, finish, prompt_of, request_of, target_of

LENGTH = 4  # of the chains


@pytest.fixture(autouse=True)
def keep_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The head's weights stay as the plain network has them."""
    monkeypatch.setattr(loaded_head, "can_round_to_int8", lambda *_: False)


class WatchedHead(HeadModel):
    """Counts the rows that go through it."""

    num_rows = 0

    def run(self, batch: StepBatch, hidden_ME: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.num_rows += batch.num_tokens
        return super().run(batch, hidden_ME)


class HeadBench(HeadedEngine):
    """An engine with a head, by itself one that has learned, and requests whose chains are recorded."""

    def __init__(self, model_type: str = "llama", network: EagleHead | None = None, **options: object) -> None:
        target = target_of(model_type)
        config = replace(CONFIG, **options)  # type: ignore[arg-type]
        self.model = tiny(model_type)
        self.network = network or trained_head(model_type)
        self.head = WatchedHead(deepcopy(self.network), target)
        super().__init__(start_engine(target, config, draft_model=self.head, kept=GIVEN))

    def add(self, name: str, prompt: NDArray[np.int32], **sampling: object) -> Request:
        params = replace(GREEDY, **sampling)  # type: ignore[arg-type]
        return self.record(request_of(name, prompt, params, "linear", max_depth=LENGTH))

    def num_checked(self) -> tuple[int, int]:
        """How many steps drafted a chain, each as the plain network says, and how many drafted nothing."""

        def shortfalls(tokens: NDArray[np.int32], chain: list[int]) -> Iterator[float]:
            for token, said in zip(chain, said_after(self.model, self.network, tokens), strict=False):
                yield max(said.values()) - said[token]

        return self.num_checked_by(shortfalls)


def said_after(model: PreTrainedModel, head: EagleHead, tokens: NDArray[np.int32]) -> Iterator[dict[int, float]]:
    """Logits of the target's tokens along the head's own chain: the whole head again for each of them."""
    ids_1N, attend = torch.from_numpy(tokens)[None].long(), attend_within(head.config.window)
    features_1NF, _ = features_of(model, ids_1N)
    with torch.no_grad():
        hidden_1NE = head.fuse(features_1NF)[:, :-1]  # of the root itself nothing is known
        while True:
            positions_1N = torch.arange(hidden_1NE.shape[1])[None]
            output_1NE = head(ids_1N[:, 1:], hidden_1NE, positions_1N, attend)
            logits_W = head.logits(output_1NE)[0, -1]
            said = dict(zip(head.target_ids.tolist(), logits_W.tolist(), strict=True))
            yield said
            best = torch.tensor([[max(said, key=lambda token: said[token])]])
            ids_1N = torch.cat([ids_1N, best], dim=1)
            hidden_1NE = torch.cat([hidden_1NE, output_1NE[:, -1:]], dim=1)


def attend_within(window: int) -> Attend:
    """Of the rows before a row and itself those less than `window` away; 0 for all."""

    def attend(query_BHND: torch.Tensor, key_BKND: torch.Tensor, value_BKND: torch.Tensor) -> torch.Tensor:
        distances = torch.arange(query_BHND.shape[2])[:, None] - torch.arange(query_BHND.shape[2])
        is_seen = (distances >= 0) & (distances < (window or len(distances)))
        return functional.scaled_dot_product_attention(
            query_BHND, key_BKND, value_BKND, attn_mask=is_seen, enable_gqa=True
        ).transpose(1, 2)

    return attend


KINDS: dict[str, dict[str, object]] = {
    "norm_before_residual": {"norm_before_residual": True},
    "norms of features": {"norm_before_fc": True, "fc_norm": True},
    "norm_output": {"norm_output": True, "draft_vocab_size": None},
    "qwen3": {"model_type": "qwen3", "head_dim": 32, "num_key_value_heads": 4},
    "window": {"layer_types": ["sliding_attention"], "sliding_window": 8},
    "biases and rotary base": {"attention_bias": True, "mlp_bias": True, "rope_theta": 300.0},
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_head_drafts_what_its_plain_network_says(kind: str) -> None:
    network = new_head(tiny("llama").get_input_embeddings().weight, fields_of(**KINDS[kind]))
    for name, parameter in network.named_parameters():
        if parameter.dim() == 1:
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
        elif name != "embed_tokens.weight":
            torch.nn.init.normal_(parameter, std=1.5 * parameter.shape[1] ** -0.5)
    bench = HeadBench(network=network)
    bench.add("one", prompt_of(21))
    bench.add("other", prompt_of(34, 1))
    finish(bench.engine)
    drafted, _ = bench.num_checked()
    assert drafted > 40


@pytest.mark.parametrize("model_type", ["llama", pytest.param("gpt_neox", marks=pytest.mark.slow)])
def test_every_chain_is_what_the_plain_network_says(model_type: str) -> None:
    bench = HeadBench(model_type)
    for seed, length in enumerate((1, 2, 15, 16, 17, 40)):
        bench.add(f"{seed}", prompt_of(length, seed), temperature=0.0)
    finish(bench.engine)
    drafted, plain = bench.num_checked()
    assert drafted > 60
    assert plain <= 6  # in the step that runs the prompt, whose features nobody knows yet


class Priced(OneTree):
    """Drafts at a price, as where nobody asks for nodes, and always asks the head."""

    price = DraftBudget(16, NodePrice(0.001), round_price=0.05, row_price=0.0001)

    def wants_model(self, budget: DraftBudget) -> bool:  # noqa: ARG002
        return True

    def begin(self, budget: DraftBudget, most_rows: int, most_depth: int) -> None:  # noqa: ARG002
        super().begin(self.price, most_rows, most_depth)


def test_one_tree_runs_no_row_of_a_head_ahead_of_what_its_parent_comes_to() -> None:
    bench, prompt = HeadBench(), np.tile(prompt_of(6, 4), 8)
    sampling = replace(GREEDY, max_tokens=60, ignore_eos=True)
    plain, drafted = (
        request_of("plain", prompt, sampling),
        request_of("drafted", prompt, sampling, "auto", max_nodes=16),
    )
    bench.engine.add(plain)
    bench.engine.add(drafted, Priced)
    stats, _ = finish(bench.engine)
    assert drafted.output.tolist() == plain.output.tolist()
    assert len(plain.output) == 60
    assert stats["drafted"].counts.drafted > 0


def test_a_prompt_in_pieces_beside_others_is_followed() -> None:
    bench = HeadBench(max_batch_rows=40)
    for seed, length in enumerate((12, 150, 70)):
        bench.add(f"{seed}", prompt_of(length, seed))
    finish(bench.engine)
    drafted, plain = bench.num_checked()
    assert drafted > 30
    assert plain <= 12, "prompts share the rows of a step"


def test_who_finds_a_prompt_drafts_the_same_and_runs_what_is_new_and_the_row_before() -> None:
    bench, prompt = HeadBench(), prompt_of(100, 3)
    chains, num_rows = [], []
    for name in ("first", "again"):
        bench.head.num_rows = 0
        bench.add(name, prompt)
        finish(bench.engine)
        chains.append([tree.tokens.tolist() for _, tree in bench.recorders[0].seen])
        num_rows.append(bench.head.num_rows)
        bench.num_checked()
    assert chains[0] == chains[1]
    num_found = 99 // BLOCK_LEN * BLOCK_LEN
    assert num_rows[0] - num_rows[1] == num_found - 1


def test_turns_of_a_conversation_and_choices_of_one_prompt_draft_as_if_alone() -> None:
    bench = HeadBench()
    history = prompt_of(37, 5)
    for turn in range(4):
        request = bench.add(f"{turn}", history)
        finish(bench.engine)
        history = np.concatenate((request.tokens, prompt_of(11, 10 + turn)))
        drafted, plain = bench.num_checked()
        assert drafted > 3
        assert plain <= 1
    for place in range(4):
        bench.add(f"choice {place}", prompt_of(64, 9), temperature=0.8, seed=place)
    finish(bench.engine)


def test_who_parts_from_another_right_after_a_block_drafts_from_its_own_row() -> None:
    bench = HeadBench()
    common = prompt_of(3 * BLOCK_LEN, 7)
    for seed in range(3):  # one after the other: the block's last row is the latest one's
        bench.add(f"{seed}", np.concatenate((common, prompt_of(5, 20 + seed))))
        finish(bench.engine)
        drafted, _ = bench.num_checked()
        assert drafted > 3


def test_who_finds_what_was_run_without_a_head_drafts_after_it() -> None:
    """Twelve blocks: the second prompt takes those of the first before a head has asked for anything."""
    bench = HeadBench(kv_slots=12 * BLOCK_LEN, max_model_len=None)
    for seed in (1, 2):
        bench.engine.add(request_of("plain", prompt_of(120, seed), replace(GREEDY, max_tokens=10)))
        finish(bench.engine)
    bench.add("found", prompt_of(120, 2))
    ended, _ = finish(bench.engine)
    assert ended["found"].cached_tokens == 119 // BLOCK_LEN * BLOCK_LEN
    drafted, plain = bench.num_checked()
    assert drafted > 3
    assert plain == 1


@pytest.mark.parametrize("prefix_cache", [True, False])
def test_who_gave_up_its_room_drafts_as_before(*, prefix_cache: bool) -> None:
    bench = HeadBench(kv_slots=14 * BLOCK_LEN, max_model_len=None, max_running=3, prefix_cache=prefix_cache)
    for seed in range(3):
        bench.add(f"{seed}", prompt_of(40, seed), max_tokens=90)
    ended, _ = finish(bench.engine)
    assert sum(stats.preemptions for stats in ended.values()) > 0
    drafted, _ = bench.num_checked()
    assert drafted > 60


@pytest.mark.slow
def test_layers_that_carry_a_state_are_read_as_others_are() -> None:
    """Also after rows that were not run, since a checkpoint of their state was found, and after a preemption."""
    bench = HeadBench("lfm2", max_batch_rows=40, kv_slots=14 * BLOCK_LEN, max_model_len=None, max_running=3)
    history = prompt_of(70, 5)
    for turn in range(2):
        request = bench.add(f"{turn}", history)
        ended, _ = finish(bench.engine)
        assert (ended[f"{turn}"].cached_tokens > 0) == (turn > 0)
        history = np.concatenate((request.tokens, prompt_of(11, 10 + turn)))
        drafted, _ = bench.num_checked()
        assert drafted > 3
    for seed in range(3):
        bench.add(f"{seed} of three", prompt_of(40, seed), max_tokens=50)
    ended, _ = finish(bench.engine)
    assert sum(stats.preemptions for stats in ended.values()) > 0
    drafted, _ = bench.num_checked()
    assert drafted > 20


def test_the_rows_of_many_trees_are_found_by_one_list_of_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    moved: list[int] = []
    move = torch.Tensor.to

    def noted(tensor: torch.Tensor, *place: object, **options: object) -> torch.Tensor:
        moved.append(len(tensor))
        return move(tensor, *place, **options)  # type: ignore[call-overload,no-any-return]

    def told(sizes: list[int], first: int) -> tuple[NDArray[np.int32], torch.Tensor]:
        offsets = np.cumsum([0, *sizes], dtype=np.int32)
        return offsets, torch.arange(first, first + int(offsets[-1]))[:, None].float()

    states = [object() for _ in range(3)]
    trees: Any = TreeRows()
    root = [(state, SimpleNamespace()) for state in states]
    trees.add(root, *told([1, 0, 1], 0))  # the second one's prompt goes on
    grown = [states[0], states[2]]
    rounds = [([-1, -1], 0), ([-1, -1, 0, 1, 1], 2)]  # of each tree: parents, and how many rows were run before
    found = []
    monkeypatch.setattr(torch.Tensor, "to", noted)
    for parents, num_written in rounds:
        segment = SimpleNamespace(parents=np.array(parents, np.int32), num_written=num_written)
        asked = [(state, segment) for state in grown]
        found.append(trees.parents(asked)[:, 0].tolist())
        size = len(parents) - num_written
        trees.add(asked, *told([size, size], 2 + sum(map(len, found[:-1]))))
    assert found == [[0, 0, 1, 1], [2, 3, 3, 4, 5, 5]]
    assert moved == [4, 6]
