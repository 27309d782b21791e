"""Trains draft heads: `gander train-head --model M --data FILE|generate --out DIR`, by minutes or by steps.

Owns the command line alone; `run` does the work, and `bundle` packs it for another machine.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from decoding.config import EngineConfig
from decoding.errors import GanderError
from decoding.training.heads.options import BlockOptions, GtoOptions, HeadDtype, Objective, TrainingOptions
from decoding.training.heads.run.bundle import bundle
from decoding.training.heads.run.device_limit import Clock
from decoding.training.heads.run.job import Job
from decoding.training.heads.run.run import Run
from decoding.training.heads.texts.answers import Asking
from decoding.training.heads.texts.prompts import GENERATED

RATES = {"eagle3": 5e-5, "block": 6e-4}
STEP_TOKENS = {"cpu": 1024, "cuda": 16384}
DTYPES: dict[str, HeadDtype] = {"cpu": "float32", "cuda": "bfloat16"}
OBJECTIVES: tuple[Objective, ...] = ("eagle3", "gto", "control", "block")


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line. Options whose default depends on others are None until `job_of` fills them in."""
    parser = argparse.ArgumentParser(prog="gander train-head", description="Train a draft head for a model.")
    add = parser.add_argument
    add("--model", default="gosling", help="the bundled model, a folder or a hub name: the head's target")
    add(
        "--data",
        nargs="+",
        default=[GENERATED],
        help=f"files of prompts, a line each, a folder of answers, {GENERATED!r}",
    )
    add("--out", type=Path, help="the head's folder; its work folder lies in it")
    add("--pack", type=Path, metavar="FOLDER", help="train nothing: write all that this call needs into a folder")
    add("--objective", type=_objectives, default=("eagle3",), help="eagle3, gto, control, with commas; or block")
    add("--minutes", type=float, help="to divide among answers, features and trainings; default: no bound")
    add("--start", help="the head to go on from: a folder or hub name")
    add("--seeds", type=int, help="of gto and control; default 3 where both are trained, else 1")
    add("--prompts", type=int, default=4000, help="of each of the data")
    add("--held-out", type=int, default=48, help="first prompts, answered at 0 and 1 for the acceptance lengths alone")
    add("--answers", type=int, default=1, help="to a prompt")
    add("--temperatures", type=float, nargs="+", default=[0.7, 1.0], help="of the answers, turn by turn")
    add("--at-once", type=int, help="answers that are written at once; default: what suits the machine")
    add("--max-tokens", type=int, default=512, help="of an answer")
    add("--max-len", type=int, default=2048, help="of prompt and answer, in tokens")
    add(
        "--feature-gib",
        type=float,
        default=8.0,
        help="of the target's states kept on disk; half of what is free at most",
    )
    add("--draft-vocabulary", type=int, default=32000, help="tokens that the head can draft, at most")
    add("--steps", type=int, help="of each training; default: 5 epochs, or what the minutes allow")
    add("--tokens", type=int, help="of a step, in whole answers; default 1024, on a GPU 16384")
    add("--rate", type=float, help="AdamW's, at its peak; default 5e-5, block 6e-4; gto and control take a tenth of it")
    add("--warm-up", type=int, help="steps; default 1000, but at most a tenth of all")
    add("--save-seconds", type=float, default=20.0, help="of training that a kill loses at most")
    add("--seed", type=int, default=0)
    add("--device", default="auto", help="auto, cpu or cuda")
    add("--dtype", choices=("float32", "bfloat16"), help="of the head's products; default float32, on a GPU bfloat16")
    add("--threads", type=int, help="default: what torch takes")
    _add_block(parser)
    _add_gto(parser)
    chosen = parser.parse_args(argv)
    if (chosen.out is None) == (chosen.pack is None):
        parser.error("name either --out, to train, or --pack, to write a folder for another machine")
    if chosen.minutes is not None and chosen.steps is not None:
        parser.error("--minutes divides time and --steps counts: give one of them")
    return chosen


def _add_block(parser: argparse.ArgumentParser) -> None:
    add, block = parser.add_argument, BlockOptions()
    add("--block", type=int, default=block.block_len, help="of a new block head: its rows, a token and masks")
    add("--layers", type=int, default=block.num_layers, help="of a new block head")
    add("--correction", type=int, default=block.markov_rank, help="rank, of a new block head's by the token before")
    add("--roots", type=int, default=block.num_roots, help="tokens of an answer at which blocks begin")


def _add_gto(parser: argparse.ArgumentParser) -> None:
    add, gto = parser.add_argument, GtoOptions()
    add("--omega", type=float, default=gto.weight, help="weight of GTO's loss")
    add("--groups", type=int, default=gto.num_groups, help="K, of an answer")
    add("--group-size", type=int, default=gto.group_size, help="m, adjacent positions")
    add("--eta", type=float, default=gto.temperature, help="of the smooth maximum over branches")
    add("--epsilon", type=float, default=gto.clip, help="how far the likelihood ratio counts from 1")
    add("--delta", type=float, default=gto.floor, help="added to the rewards' spread in a group")
    add("--reward", choices=("expected", "greedy"), default=gto.reward)
    add("--aggregate", choices=("lse", "max", "mean"), default=gto.aggregate)


def _objectives(given: str) -> tuple[Objective, ...]:
    """In the order in which they are trained."""
    names = given.split(",")
    if unknown := next((name for name in names if name not in OBJECTIVES), None):
        raise argparse.ArgumentTypeError(f"{unknown!r} is none of {', '.join(OBJECTIVES)}")
    if "block" in names and len(names) > 1:
        raise argparse.ArgumentTypeError("block is trained alone")
    return tuple(name for name in OBJECTIVES if name in names)


def job_of(chosen: argparse.Namespace) -> Job:
    """The command line as a job."""
    kind = "cuda" if torch.cuda.is_available() else "cpu"
    kind = kind if chosen.device == "auto" else chosen.device.partition(":")[0]
    gto = GtoOptions(
        group_size=chosen.group_size,
        num_groups=chosen.groups,
        weight=chosen.omega,
        temperature=chosen.eta,
        clip=chosen.epsilon,
        floor=chosen.delta,
        reward=chosen.reward,
        aggregate=chosen.aggregate,
    )
    options = TrainingOptions(
        objective=chosen.objective[0],
        num_steps=chosen.steps,
        rate=chosen.rate or RATES.get(chosen.objective[0], RATES["eagle3"]),
        warm_up_steps=chosen.warm_up,
        seed=chosen.seed,
        tokens=chosen.tokens or STEP_TOKENS.get(kind, STEP_TOKENS["cpu"]),
        dtype=chosen.dtype or DTYPES.get(kind, DTYPES["cpu"]),
        save_seconds=chosen.save_seconds,
        gto=gto,
        block=BlockOptions(chosen.block, chosen.layers, chosen.correction, chosen.roots),
    )
    has_both = {"gto", "control"} <= set(chosen.objective)
    return Job(
        engine=EngineConfig(model=chosen.model, device=chosen.device, threads=torch.get_num_threads()),
        data=tuple(chosen.data),
        out=chosen.out,
        start=chosen.start,
        objectives=chosen.objective,
        num_prompts=chosen.prompts,
        num_held_out=chosen.held_out,
        draft_vocab_size=chosen.draft_vocabulary,
        asking=Asking(tuple(chosen.temperatures), chosen.answers, chosen.max_tokens, chosen.max_len, chosen.seed),
        options=options,
        minutes=chosen.minutes,
        at_once=chosen.at_once,
        feature_bytes=int(chosen.feature_gib * 2**30),
        seeds=chosen.seeds or (3 if has_both else 1),
    )


def main(argv: Sequence[str] | None = None, now: Clock = time.monotonic) -> int:
    """Train, write the heads, and say the acceptance lengths; or pack. now: the clock that minutes are counted by."""
    chosen = parse(argv)
    if chosen.threads is not None:
        torch.set_num_threads(chosen.threads)
    try:
        if chosen.pack is not None:
            pieces = bundle(chosen)
            _say(f"{chosen.pack}: {pieces} pieces; python run.py there does the rest")
            return 0
        found = Run(job_of(chosen), _say, now).finish()
    except GanderError as error:
        sys.stderr.write(f"train-head: {error}\n")
        return 2
    for name, lengths in found.items():
        shapes = ("; ".join(f"{one:g} at temperature {at}" for at, one in each.items()) for each in lengths.values())
        _say(f"{name}: acceptance length as a chain {', as a tree '.join(shapes)}")
    return 0


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
