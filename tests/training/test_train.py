"""Training: a stopped run goes on to the very same weights, and the schedule does what its plan says."""

from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from torch import Tensor, nn
from transformers import LlamaForCausalLM

from decoding.training.recipe import BUNDLED
from decoding.training.replicas import Replicas
from decoding.training.schedule import Plan, Stage
from decoding.training.tokenizer import train_tokenizer
from decoding.training.tokens import TokenisedCorpus, pack_batch, tokenise_mixture
from decoding.training.train import Shape, Trainer, make_model

PLAN = Plan(6, (Stage(0, 32, 128), Stage(3, 64, 128, 0.5)), warm_up_steps=2, decay_steps=3, learns_from_target_at=4)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer(0, sample_share=0.01)


@pytest.fixture(scope="module")
def corpus(tokenizer: Tokenizer) -> TokenisedCorpus:
    return tokenise_mixture(tokenizer, 0, 4000, BUNDLED.practice_shares)


def make_trainer(corpus: TokenisedCorpus, tokenizer: Tokenizer, checkpoint: Path) -> Trainer:
    shape = Shape(tokenizer.get_vocab_size(), 16, 1, 2, 1, 32)
    return Trainer(make_model(shape, 1), corpus, PLAN, checkpoint, teacher=make_model(shape, 2))


def test_a_stopped_run_ends_with_the_same_weights(
    corpus: TokenisedCorpus, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    whole = make_trainer(corpus, tokenizer, tmp_path / "whole.pt")
    while not whole.is_done:
        whole.take_step()
    stopped = make_trainer(corpus, tokenizer, tmp_path / "stopped.pt")
    for _ in range(3):
        stopped.take_step()
    stopped.save()
    stopped.take_step()  # lost, as in a kill
    resumed = make_trainer(corpus, tokenizer, tmp_path / "stopped.pt")
    assert resumed.progress.step == 3
    while not resumed.is_done:
        resumed.take_step()
    assert resumed.progress.losses == whole.progress.losses
    for name, weight in whole.model.state_dict().items():
        assert torch.equal(weight, resumed.model.state_dict()[name]), name


def test_rates_warm_up_stay_and_decay() -> None:
    plan = Plan(100, (Stage(0, 32, 128),), warm_up_steps=10, decay_steps=20)
    factors = [plan.rate_factor(step) for step in range(100)]
    assert factors[0] == pytest.approx(0.1)
    assert factors[9:80] == [1.0] * 71
    assert factors[90] == pytest.approx(0.5)
    assert Plan(200, plan.stages, warm_up_steps=10, decay_steps=20).rate_factor(50) == plan.rate_factor(50)


def test_a_stage_holds_from_its_first_step_on() -> None:
    assert [PLAN.stage(step).row_len for step in (0, 2, 3, 5)] == [32, 32, 64, 64]
    assert PLAN.rate_factor(2) == 1.0
    assert PLAN.rate_factor(3) == pytest.approx(0.5)


def test_replicas_leave_the_gradients_of_the_whole_batch(corpus: TokenisedCorpus, tokenizer: Tokenizer) -> None:
    batch = pack_batch(corpus, 0, 4, 32)
    gradients = []
    for count in (1, 2):
        model = make_model(Shape(tokenizer.get_vocab_size(), 16, 1, 2, 1, 32), 1)
        Replicas(model, count).accumulate(_loss, batch.inputs, batch.targets)
        gradients.append([weight.grad for weight in model.parameters()])
    for whole, summed in zip(*gradients, strict=True):
        torch.testing.assert_close(whole, summed)


def _loss(model: LlamaForCausalLM, inputs: Tensor, targets: Tensor) -> Tensor:
    logits = model(input_ids=inputs).logits
    return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")
