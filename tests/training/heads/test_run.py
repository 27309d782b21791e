"""The command's run on a tiny model: killed anywhere it goes on to the same heads, and minutes are divided."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import pytest
import torch

from decoding.drafting.eagle.checkpoint import HeadTarget, load_head, read_tensors
from decoding.model.checkpoint import BUNDLED_FOLDER
from decoding.training.heads.run.device_limit import DeviceLimit
from decoding.training.heads.run.parts import Parts
from decoding.training.heads.train_head import main
from tests.models import tiny
from tests.training.heads.lessons import SteppingClock

VOCAB = 2048
ARMS = ("eagle3", "gto", "control-tokens", "control-seconds")


class Killed(BaseException):
    """As sudden as a signal: nobody catches it."""


class KillingClock(SteppingClock):
    """Kills at a look."""

    def __init__(self, looks: int) -> None:
        super().__init__()
        self.left = looks

    def __call__(self) -> float:
        self.left -= 1
        if self.left == 0:
            raise Killed
        return super().__call__()


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """All but --out and how long."""
    folder = tmp_path_factory.mktemp("target")
    tiny("llama", vocab_size=VOCAB).save_pretrained(folder / "model")
    for path in BUNDLED_FOLDER.glob("tokenizer*"):
        shutil.copy(path, folder / "model")
    prompts = folder / "prompts.txt"
    prompts.write_text("".join(f"Tell me of {number} birds.\n" for number in range(8)))
    options = {"model": folder / "model", "data": prompts, "held-out": 2, "max-tokens": 24, "max-len": 64, "threads": 1}
    options |= {"tokens": 64, "draft-vocabulary": 300, "groups": 1, "group-size": 2, "save-seconds": 1, "rate": 1e-3}
    return [word for name, value in options.items() for word in (f"--{name}", str(value))]


def run_killed(command: list[str], looks: int) -> int:
    """How often the command was killed, each time after so many looks at the clock, before it was done."""
    for times in range(99):
        try:
            assert main(command, KillingClock(looks)) == 0
        except Killed:
            continue
        return times
    raise AssertionError("it never came to its end")


def test_a_run_that_is_killed_again_and_again_goes_on_to_the_same_heads(command: list[str], tmp_path: Path) -> None:
    steps = ["--objective", "eagle3,gto,control", "--seeds", "1", "--steps", "6"]
    assert main([*command, *steps, "--out", str(tmp_path / "whole")], SteppingClock()) == 0
    assert run_killed([*command, *steps, "--out", str(tmp_path / "killed")], looks=55) >= 4
    whole, killed = (json.loads((tmp_path / name / "training.json").read_text()) for name in ("whole", "killed"))
    assert set(whole["acceptance_lengths"]) == set(killed["acceptance_lengths"]) == set(ARMS)
    assert all(whole["acceptance_lengths"][arm] == killed["acceptance_lengths"][arm] for arm in ARMS[:-1])
    weights = {}
    for arm in ARMS:
        weights[arm], other = (read_tensors(tmp_path / name / arm) for name in ("whole", "killed"))
        if arm != "control-seconds":  # which has as many steps as there was time for
            assert all(torch.equal(each, other[name]) for name, each in weights[arm].items()), arm
    assert not torch.equal(weights["gto"]["fc.weight"], weights["control-tokens"]["fc.weight"])
    best = read_tensors(tmp_path / "whole")
    assert torch.equal(best["fc.weight"], weights[whole["best"]]["fc.weight"])
    fields = json.loads((tmp_path / "whole" / "eagle3" / "config.json").read_text())
    assert fields["speculators_model_type"] == "eagle3"
    head = load_head(tmp_path / "whole", HeadTarget(torch.zeros(VOCAB, 64), 3))
    assert head.lm_head.weight.shape[0] == 300


def test_minutes_are_divided_and_each_part_says_its_rate(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = [*command, "--out", str(tmp_path), "--objective", "eagle3", "--minutes", "2"]
    assert main([*asked, "--prompts", "8", "--answers", "500"], SteppingClock()) == 0
    spent = json.loads((tmp_path / "work" / "parts.json").read_text())
    bounds = {"answers": 120 * 4.5 / 10.1, "eagle3": 120 * 4.5 / 10.1}
    for name, bound in bounds.items():
        assert bound - 2 < spent[name]["seconds"] < bound + 3, name
        assert spent[name]["tokens"] > 0
    assert sum(spent[name]["seconds"] for name in ("answers", "features", "eagle3")) <= 118
    lines = capsys.readouterr().out
    for name in ("answers", "features", "eagle3"):
        assert f"{name}: {spent[name]['tokens']:,} tokens" in lines
    assert "% of the device's limit" in lines


def test_a_block_head_goes_the_same_way(command: list[str], tmp_path: Path) -> None:
    asked = [*command, "--objective", "block", "--roots", "8", "--steps", "2"]
    assert main([*asked, "--out", str(tmp_path / "head")], SteppingClock()) == 0
    (answers,) = (tmp_path / "head" / "work").glob("answers-*")
    further = [*asked, "--data", str(answers), "--start", str(tmp_path / "head"), "--out", str(tmp_path / "further")]
    assert main(further, SteppingClock()) == 0
    for name in ("head", "further"):
        assert (tmp_path / name / "model.safetensors").exists()
        told = json.loads((tmp_path / name / "training.json").read_text())
        assert all(length >= 1 for shape in told["acceptance_lengths"]["block"].values() for length in shape.values())


def test_a_parts_time_is_its_share_of_what_is_left_whenever_it_is_asked_for(tmp_path: Path) -> None:
    clock = SteppingClock()
    shares = {"answers": 2.0, "eagle3": 1.0, "gto": 1.0}

    def parts() -> Parts:
        return Parts(tmp_path / "parts.json", shares, 1.0, DeviceLimit(1e9, 1e9), lambda _line: None, clock)

    with parts().part("answers") as part:
        assert part.left == 30
        clock.seconds += 9
        part.note(1000, 5e8)
        assert part.left == 20.5
        assert "1,000 tokens in 10 of 30 s, 105 a second, 5.3% of the device's limit" in part.line("")
    again = parts()
    assert again.is_done("answers")
    spent = again.spent["answers"].seconds
    assert again.seconds_for("eagle3") == (60 - spent) / 2
    killed = again.part("eagle3")
    killed.__enter__().note(10)
    again.write()  # and never left: the process is gone
    later = parts()
    assert not later.is_done("eagle3")
    assert later.seconds_for("eagle3") == (60 - spent) / 2
    assert math.isinf(later.seconds_for("acceptance of gto"))
    later.skip("eagle3")
    assert later.seconds_for("gto") == 60 - spent
