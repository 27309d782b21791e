"""Training a block head: it learns what serving runs, goes on where it was stopped, and what it exports loads."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from decoding.drafting.block.block_config import spread_layers
from decoding.drafting.block.block_model import BlockModel
from decoding.drafting.block.checkpoint import load_block, save_block
from decoding.drafting.block.network import BlockHead
from decoding.model.target_model import TargetModel
from decoding.training.heads.acceptance import acceptance
from decoding.training.heads.block.block_acceptance import accepted_in_blocks
from decoding.training.heads.block.blocks import PaddedLesson, block_loss, draw_roots, name_blocks
from decoding.training.heads.block.fresh_block import new_block_head, rarest_token
from decoding.training.heads.options import BlockOptions, TrainingOptions, TreeShape
from decoding.training.heads.target import OnlineTarget
from decoding.training.heads.texts.features import Features
from decoding.training.heads.texts.packs import packed
from decoding.training.heads.train_head import main
from decoding.training.heads.trainer import HeadTrainer
from tests.blocks import Published
from tests.models import tiny
from tests.training.heads.lessons import CONFIG, VOCAB, SteppingClock, answers, target_of

SHAPE = BlockOptions(block_len=4, num_layers=1, num_roots=8)
CORRECTED = BlockOptions(block_len=4, num_layers=1, markov_rank=8, num_roots=8)


def head_of(target: OnlineTarget, shape: BlockOptions = SHAPE) -> BlockHead:
    mask = rarest_token([each.tokens for each in answers()], target.model.shared.embeddings)
    head = new_block_head(target, mask, shape, 0)
    target.watch(head.config.feature_layers)
    return head


def make_trainer(checkpoint: Path, num_steps: int, shape: BlockOptions = SHAPE) -> HeadTrainer:
    target = target_of(tiny("llama", vocab_size=VOCAB))
    options = TrainingOptions(
        objective="block", num_steps=num_steps, rate=3e-3, warm_up_steps=2, tokens=60, save_seconds=1.0, block=shape
    )
    head, packs = head_of(target, shape), packed(answers(), options.tokens, 0)
    return HeadTrainer(head, None, Features(target, None, 0), packs, options, checkpoint, SteppingClock())


def lesson_of(tokens_BT: torch.Tensor, num_answered: int) -> PaddedLesson:
    """Random features and distributions; the first `num_answered` tokens belong to the answer."""
    generator = torch.Generator().manual_seed(0)
    features_BTF = torch.randn((*tokens_BT.shape, 2 * 64), generator=generator)
    wanted_BTW = torch.rand((*tokens_BT.shape, VOCAB), generator=generator).softmax(-1)
    learned_BT = (torch.arange(tokens_BT.shape[1]) < num_answered).expand_as(tokens_BT)
    return PaddedLesson(tokens_BT, features_BTF, wanted_BTW, learned_BT)


@pytest.mark.parametrize("shape", [SHAPE, CORRECTED])
def test_the_loss_falls_the_targets_layers_stay_and_the_export_names_what_was_trained(
    tmp_path: Path, shape: BlockOptions
) -> None:
    trainer = make_trainer(tmp_path / "run.pt", 30, shape)
    head = trainer.head
    assert isinstance(head, BlockHead)
    shared = [each.clone() for each in head.shared.parameters()]
    while not trainer.is_done:
        trainer.take_step()
    first, last = trainer.progress.depth_losses[0], trainer.progress.depth_losses[-1]
    assert len(first) == head.config.num_places == (3 if shape is SHAPE else 4)
    assert all(later < 0.9 * sooner for sooner, later in zip(first, last, strict=True))
    assert all(map(torch.equal, shared, head.shared.parameters()))
    save_block(head, tmp_path, 3)
    target = TargetModel.from_model(tiny("llama", vocab_size=VOCAB), CONFIG)
    loaded = load_block(tmp_path, target)
    assert all(torch.equal(each, loaded.own_state()[name]) for name, each in head.own_state().items())
    assert BlockModel(loaded, target).block_len == 4
    tokens = answers()[0].tokens
    online = target_of(tiny("llama", vocab_size=VOCAB))
    online.watch(head.config.feature_layers)
    with online.reading([tokens]) as (reading,), torch.no_grad():
        roots_1A = torch.tensor([[9]])
        hidden = name_blocks(head, torch.from_numpy(tokens)[None].long(), reading.features_TF[None], roots_1A)
        said = head.logits(hidden)[0, 0]
        if head.markov_head is not None:
            assert head.markov_head.markov_w2.weight.abs().max() > 0
            said = said + head.markov_head.of_all(torch.from_numpy(tokens[9 : 9 + len(said)]).long())
    published = Published(tmp_path, tiny("llama", vocab_size=VOCAB)).says(tokens[:10], tokens[10:13].tolist())
    torch.testing.assert_close(published, said, atol=1e-3, rtol=1e-3)


def test_a_run_that_was_stopped_goes_on_to_the_same_losses(tmp_path: Path) -> None:
    whole, stopped = make_trainer(tmp_path / "whole.pt", 6), make_trainer(tmp_path / "stopped.pt", 6)
    while not whole.is_done:
        whole.take_step()
    for _ in range(4):
        stopped.take_step()
    resumed = make_trainer(tmp_path / "stopped.pt", 6)
    assert resumed.progress.step == 4
    while not resumed.is_done:
        resumed.take_step()
    assert resumed.progress.losses == whole.progress.losses
    assert all(map(torch.equal, resumed.head.parameters(), whole.head.parameters()))


def test_no_place_is_named_with_what_comes_later_in_mind() -> None:
    head = head_of(target_of(tiny("llama", vocab_size=VOCAB)))
    tokens_1T = torch.arange(12)[None] + 3
    lesson = lesson_of(tokens_1T, 11)
    changed = tokens_1T.clone()
    changed[0, 6:] = 40
    features = lesson.features_BTF.clone()
    features[0, 5:] = 9.0  # of the root, too, which the target has not run yet
    with torch.no_grad():
        roots = torch.tensor([[5]])
        named = name_blocks(head, tokens_1T, lesson.features_BTF, roots)
        assert torch.equal(named, name_blocks(head, changed, features, roots))
        changed[0, 5] = 40
        assert not torch.equal(named, name_blocks(head, changed, features, roots))


def test_places_after_the_answers_end_teach_nothing() -> None:
    head = head_of(target_of(tiny("llama", vocab_size=VOCAB)))
    lesson = lesson_of(torch.arange(12)[None] + 3, 7)
    with torch.no_grad():
        inside = block_loss(head, lesson, torch.tensor([[3, 5]]))
        beyond = block_loss(head, lesson, torch.tensor([[3, 5, 8, 10]]))
    torch.testing.assert_close(inside.losses_I, beyond.losses_I)
    assert inside.loss > 0


@pytest.mark.parametrize(
    ("num_layers", "layers"),
    [(36, (2, 10, 18, 26, 34)), (8, (2, 3, 4, 5, 6)), (5, (1, 2, 3, 4)), (3, (1, 2)), (1, (1,))],
)
def test_a_new_head_reads_layers_as_the_published_ones_do(num_layers: int, layers: tuple[int, ...]) -> None:
    assert spread_layers(num_layers, 5) == layers


def test_blocks_begin_in_the_answer_and_have_something_to_name() -> None:
    roots_BA = draw_roots(answers(), 64, (0, 3))
    for answer, roots_A in zip(answers(), roots_BA.tolist(), strict=True):
        assert min(roots_A) >= answer.num_prompt - 1
        assert max(roots_A) <= len(answer.tokens) - 2
    assert torch.equal(roots_BA, draw_roots(answers(), 64, (0, 3)))
    assert not torch.equal(roots_BA, draw_roots(answers(), 64, (0, 4)))


def test_the_mask_is_a_token_that_no_answer_needs_and_that_can_be_told() -> None:
    embeddings = torch.ones(6, 2)
    embeddings[5] = 0
    assert rarest_token([np.array([0, 1, 3, 3])], embeddings) == 4
    assert rarest_token([np.array([0, 1, 3, 4])], embeddings) == 2


@pytest.mark.parametrize("shape", [SHAPE, CORRECTED])
def test_the_tree_of_all_paths_holds_what_each_depths_candidates_do(shape: BlockOptions) -> None:
    target = target_of(tiny("llama", vocab_size=VOCAB))
    head, answer = head_of(target, shape), answers()[2]
    if head.markov_head is not None:
        torch.nn.init.normal_(head.markov_head.markov_w2.weight)
    all_paths = TreeShape(top_k=4, num_nodes=4 + 16 + 64, num_levels=3)
    widest = accepted_in_blocks(head, target, answer, all_paths)
    chain = accepted_in_blocks(head, target, answer, TreeShape(top_k=1, num_nodes=8, num_levels=3))
    assert len(widest) == len(answer.reply) - 1
    assert (widest >= chain).all()
    assert widest.max() <= 3
    narrower = accepted_in_blocks(head, target, answer, TreeShape(top_k=4, num_nodes=12, num_levels=3))
    assert (widest >= narrower).all()
    assert (narrower >= chain).all()
    assert acceptance(head, target, [answer], all_paths).num_emitted == len(widest)


@pytest.mark.slow
def test_the_command_trains_a_block_head_that_loads_and_goes_on_from_it(tmp_path: Path) -> None:
    small = ["--objective", "block", "--held-out", "2", "--steps", "2", "--threads", "1", "--max-len", "96"]
    out, further = tmp_path / "head", tmp_path / "further"
    assert main(["--out", str(out), "--prompts", "6", "--max-tokens", "40", "--roots", "8", *small]) == 0
    shards = next((out / "work").glob("answers-*"))
    assert main(["--out", str(further), "--data", str(shards), "--start", str(out), *small]) == 0
    for folder in (out, further):
        assert (folder / "model.safetensors").exists()
        assert (folder / "curves.svg").read_text().count("depth 7")
