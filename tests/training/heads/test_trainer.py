"""A head's training: it learns, and a run that was killed goes on to the same losses."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from decoding.drafting.eagle.network import EagleHead
from decoding.errors import ConfigError
from decoding.training.heads.options import HeadDtype, Objective, TrainingOptions
from tests.training.heads.lessons import make_trainer

CHILD = """
import sys
from pathlib import Path
from tests.training.heads.lessons import make_trainer
trainer = make_trainer(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
while not trainer.is_done:
    trainer.take_step()
    sys.stdout.write(f"{trainer.progress.step}\\n")
    sys.stdout.flush()
"""
ROOT = Path(__file__).parents[3]


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["eagle3", "gto"])
def test_a_run_killed_at_a_random_step_goes_on_to_the_same_losses(objective: Objective, tmp_path: Path) -> None:
    num_steps, last = 10, random.randint(3, 9)
    whole = make_trainer(objective, tmp_path / "whole.pt", num_steps)
    while not whole.is_done:
        whole.take_step()
    checkpoint = tmp_path / "killed.pt"
    command = [sys.executable, "-c", CHILD, objective, str(checkpoint), str(num_steps)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as child:
        assert child.stdout is not None
        while int(child.stdout.readline()) < last:
            pass
        child.send_signal(signal.SIGKILL)
    resumed = make_trainer(objective, checkpoint, num_steps)
    assert resumed.progress.step >= 2
    while not resumed.is_done:
        resumed.take_step()
    assert resumed.progress.losses == whole.progress.losses
    assert resumed.progress.gto == whole.progress.gto
    for name, weight in whole.head.state_dict().items():
        assert torch.equal(weight, resumed.head.state_dict()[name]), name


@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=pytest.mark.slow)])
def test_the_head_learns_and_its_embeddings_stay(dtype: HeadDtype, tmp_path: Path) -> None:
    trainer = make_trainer("gto", tmp_path / "run.pt", 40, dtype)
    assert isinstance(trainer.head, EagleHead)
    embeddings = trainer.head.embed_tokens.weight.clone()
    while not trainer.is_done:
        trainer.take_step()
    first, last = trainer.progress.depth_losses[0], trainer.progress.depth_losses[-1]
    assert all(later < 0.9 * sooner for sooner, later in zip(first[:3], last[:3], strict=True))
    assert torch.equal(trainer.head.embed_tokens.weight, embeddings)


def test_the_control_is_gto_without_its_loss(tmp_path: Path) -> None:
    control = make_trainer("control", tmp_path / "control.pt", 4)
    plain = make_trainer("eagle3", tmp_path / "plain.pt", 4)
    tuned = make_trainer("gto", tmp_path / "tuned.pt", 4)
    for trainer in (control, plain, tuned):
        while not trainer.is_done:
            trainer.take_step()
    assert control.progress.losses == plain.progress.losses
    assert tuned.progress.losses[0] == plain.progress.losses[0]  # its first step has no advantages
    assert tuned.progress.gto[0][0] == 0
    assert tuned.progress.losses[1:] != plain.progress.losses[1:]


def test_a_checkpoint_of_another_run_is_refused_by_what_differs(tmp_path: Path) -> None:
    make_trainer("gto", tmp_path / "run.pt", 4).save()
    with pytest.raises(ConfigError, match=r"other num_steps, gto;"):
        make_trainer("gto", tmp_path / "run.pt", 5, clip=0.1)


def test_rates_warm_up_and_decay_to_nothing_by_steps_and_by_seconds() -> None:
    by_steps = TrainingOptions(objective="eagle3", rate=1.0, num_steps=20)
    rates = [by_steps.rate_at(step, by_steps.share(step, 0.0)) for step in range(20)]
    assert rates[:4] == pytest.approx([0.5, 1.0, 1.0, 0.85 / 0.9])
    assert rates[11] == pytest.approx(0.5)
    assert rates[19] == pytest.approx(0.05 / 0.9)
    by_seconds = TrainingOptions(objective="eagle3", rate=1.0, seconds=50.0)
    shares = [by_seconds.share(step, 2.5 * step) for step in range(20)]
    assert [by_seconds.rate_at(step, share) for step, share in enumerate(shares)][2:] == pytest.approx(
        rates[2:], rel=0.06
    )
    long_warm_up = TrainingOptions(objective="eagle3", rate=1.0, num_steps=20, warm_up_steps=8)
    assert [long_warm_up.rate_at(step, step / 20) for step in range(4)] == [0.125, 0.25, 0.375, 0.5]
    assert TrainingOptions(objective="eagle3", rate=1.0).share(0, 0.0) == 1.0  # no time at all


def test_a_run_of_so_many_seconds_ends_with_them_and_counts_what_it_learned(tmp_path: Path) -> None:
    trainer = make_trainer("eagle3", tmp_path / "run.pt", None, seconds=3.0)
    while not trainer.is_done:
        trainer.take_step()
    assert trainer.progress.step == 6  # half a second each, by its clock
    assert trainer.progress.tokens >= 6 * 20
    assert trainer.progress.products > 0
    resumed = make_trainer("eagle3", tmp_path / "run.pt", None, seconds=4.0)
    assert resumed.progress == trainer.progress
    assert not resumed.is_done
