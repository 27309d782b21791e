"""Trains a draft head: `gander train-head --model M --data FILE|generate --out DIR`, and GTO on one with `--start`.

Owns the command: answers, steps, plot, folder, and the acceptance length on held-out texts.
Invariant: every part in the work folder is complete, so the command can be killed at any time and started again.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

import torch
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from decoding.config import EngineConfig
from decoding.core.files.output import claim_folder, replace_file
from decoding.drafting.block.checkpoint import assemble_block, save_block
from decoding.drafting.block.network import BlockHead
from decoding.drafting.eagle.checkpoint import HeadTarget, find_head, load_head, save_head
from decoding.drafting.eagle.network import EagleHead
from decoding.engine.start import load_engine
from decoding.errors import ConfigError, GanderError
from decoding.model.checkpoint import resolve
from decoding.model.files.gguf_place import gguf_paths
from decoding.training.heads.acceptance import CHAIN, acceptance
from decoding.training.heads.answers import Answer, Asking, load_answers, regenerate
from decoding.training.heads.block.fresh_block import new_block_head, rarest_token, shared_layers
from decoding.training.heads.curves import plot_curves
from decoding.training.heads.fresh_head import most_frequent_tokens, new_head
from decoding.training.heads.options import BlockOptions, GtoOptions, TrainingOptions
from decoding.training.heads.prompts import GENERATED, generated_prompts, prompts_of_file
from decoding.training.heads.target import OnlineTarget
from decoding.training.heads.trainer import HeadTrainer

RATES = {"eagle3": 5e-5, "gto": 5e-6, "block": 6e-4}
EPOCHS = 5
COLUMNS = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())


@dataclass(frozen=True)
class Job:
    """One call of the command. num_held_out: so many last answers are kept for the check at the end."""

    engine: EngineConfig
    data: str
    out: Path
    start: str | None
    num_prompts: int
    num_held_out: int
    draft_vocab_size: int
    asking: Asking
    options: TrainingOptions

    @property
    def work(self) -> Path:
        """The folder of answers and checkpoint."""
        return self.out / "work"


def prepare_answers(job: Job, console: Console) -> tuple[list[Answer], list[Answer]]:
    """The answers to learn from, and the held-out ones: from a folder of shards given as data, or from the job's own,
    which are generated if they are missing."""
    folder = Path(job.data)
    if not (folder.is_dir() and any(folder.glob("*.npz"))):
        folder = _regenerated(job, console)
    answers = load_answers(folder, job.options.max_len)
    if len(answers) <= job.num_held_out:
        raise ConfigError(f"{folder} holds {len(answers)} answers, and {job.num_held_out} of them are held out")
    end = len(answers) - job.num_held_out
    return answers[:end], answers[end:]


def _regenerated(job: Job, console: Console) -> Path:
    if job.data != GENERATED and not Path(job.data).is_file():
        raise ConfigError(f"data {job.data!r} is neither {GENERATED!r}, a file of prompts nor a folder of answers")
    config, source = resolve(job.engine)
    engine = load_engine(config)
    if job.data == GENERATED:
        prompts = generated_prompts(source, job.num_prompts, job.asking.seed)
    else:
        prompts = prompts_of_file(Path(job.data), source, job.num_prompts)
    folder = job.work / f"answers-{job.asking.name(job.engine.model, prompts)}"
    with Progress(*COLUMNS, TimeRemainingColumn(), console=console) as bars:
        bar = bars.add_task("answers", total=len(prompts))
        regenerate(engine, prompts, job.asking, folder, lambda done: bars.update(bar, completed=done))
    return folder


def load_heads(
    job: Job, target: OnlineTarget, answers: Sequence[Answer]
) -> tuple[EagleHead | BlockHead, EagleHead | None]:
    """The head to train, and GTO's frozen reference. Raises ConfigError if a start head is missing or does not fit."""
    embeddings_VE = target.model.shared.embeddings.detach()
    if job.options.objective == "block":
        if job.start is None:
            mask = rarest_token([answer.tokens for answer in answers], embeddings_VE)
            return new_block_head(target, mask, job.options.block, job.options.seed), None
        layers = shared_layers(target)
        return assemble_block(find_head(job.start), *layers, embeddings_VE.float(), target.model.num_layers), None
    if job.start is None:
        if job.options.objective == "gto":
            raise ConfigError("objective 'gto' goes on from a head: name it with --start")
        size = min(job.draft_vocab_size, len(embeddings_VE))
        tokens = most_frequent_tokens([answer.reply for answer in answers], len(embeddings_VE), size)
        return new_head(target, tokens, job.options.seed), None
    fits = HeadTarget(embeddings_VE.float(), target.model.num_layers)
    head, reference = (load_head(find_head(job.start), fits) for _ in range(2))
    if job.options.objective == "eagle3":
        return head, None
    return head, reference.requires_grad_(False)


def train(job: Job, console: Console) -> dict[str, float]:
    """Do the rest of a job and write the head; return the acceptance lengths on the held-out answers. Raises
    ConfigError for a folder that holds something else, and for a GGUF file."""
    if gguf_paths(job.engine.model, job.engine.gguf_file, job.engine.revision):
        raise ConfigError(
            f"--model {job.engine.model} is a GGUF file: train on the folder of the model that it was made from, and "
            "serve the file with that head"
        )
    claim_folder(job.out)
    answers, held_out = prepare_answers(job, console)
    job = replace(job, options=with_steps(job.options, len(answers)))
    target = OnlineTarget.load(job.engine, job.options.max_len * job.options.batch)
    head, reference = load_heads(job, target, answers)
    target.watch(head.config.feature_layers)
    trainer = HeadTrainer(head, reference, target, answers, job.options, job.work / "training.pt")
    with Progress(*COLUMNS, TimeRemainingColumn(), console=console) as bars:
        bar = bars.add_task("steps", total=job.options.num_steps, completed=trainer.progress.step)
        while not trainer.is_done:
            loss = trainer.take_step()
            bars.update(bar, completed=trainer.progress.step, description=f"loss {loss:.3f}")
    if isinstance(head, BlockHead):
        save_block(head, job.out, target.model.num_layers)
    else:
        save_head(head, job.out, job.engine.model)
    if find_spec("matplotlib") is not None:
        plot_curves(trainer.progress, job.out / "curves.svg")
    shapes = {"chain": CHAIN, "tree": job.options.gto.tree}
    lengths = {name: round(acceptance(head, target, held_out, shape).tau, 3) for name, shape in shapes.items()}
    told = {"seconds": round(trainer.progress.seconds, 1), "num_answers": len(answers), "acceptance_lengths": lengths}
    with replace_file(job.out / "training.json") as file:
        file.write(json.dumps(told, indent=2).encode() + b"\n")
    return lengths


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line. Options whose default depends on the objective are None until `job_of` fills them in."""
    parser = argparse.ArgumentParser(prog="gander train-head", description="Train a draft head for a model.")
    add, gto, block = parser.add_argument, GtoOptions(), BlockOptions()
    add("--model", default="gosling", help="the bundled model, a folder or a hub name: the head's target")
    add("--data", default=GENERATED, help=f"prompts, a line each, a folder of answers, or {GENERATED!r}")
    add("--out", type=Path, required=True, help="the head's folder; its work folder lies in it")
    add("--objective", choices=("eagle3", "gto", "block"), default="eagle3")
    add("--start", help="the head to go on from: a folder or hub name; gto needs one")
    add("--prompts", type=int, default=4000, help="of the data")
    add("--held-out", type=int, default=48, help="answers kept for the acceptance lengths at the end")
    add("--temperatures", type=float, nargs="+", default=[0.0, 1.0], help="of the answers, turn by turn")
    add("--max-tokens", type=int, default=512, help="of an answer")
    add("--max-len", type=int, default=2048, help="of prompt and answer, in tokens")
    add("--draft-vocabulary", type=int, default=32000, help="tokens that the head can draft, at most")
    add("--steps", type=int, help="default: 5 epochs")
    add("--rate", type=float, help="AdamW's, at its peak; default 5e-5, gto 5e-6, block 6e-4")
    add("--warm-up", type=int, help="steps; default 1000, but at most a tenth of all")
    add("--batch", type=int, default=1, help="answers at once")
    add("--accumulation", type=int, default=2, help="batches in a step")
    add("--checkpoint-every", type=int, default=25, help="steps")
    add("--seed", type=int, default=0)
    add("--device", default="auto", help="auto, cpu or cuda")
    add("--dtype", choices=("float32", "bfloat16"), default="float32", help="of the head's products")
    add("--threads", type=int, help="default: what torch takes")
    add("--block", type=int, default=block.block_len, help="of a new block head: its rows, a token and masks")
    add("--layers", type=int, default=block.num_layers, help="of a new block head")
    add("--correction", type=int, default=block.markov_rank, help="rank, of a new block head's by the token before")
    add("--roots", type=int, default=block.num_roots, help="tokens of an answer at which blocks begin")
    add("--omega", type=float, default=gto.weight, help="weight of GTO's loss; 0 trains on without it")
    add("--groups", type=int, default=gto.num_groups, help="K, of an answer")
    add("--group-size", type=int, default=gto.group_size, help="m, adjacent positions")
    add("--eta", type=float, default=gto.temperature, help="of the smooth maximum over branches")
    add("--epsilon", type=float, default=gto.clip, help="how far the likelihood ratio counts from 1")
    add("--delta", type=float, default=gto.floor, help="added to the rewards' spread in a group")
    add("--reward", choices=("expected", "greedy"), default=gto.reward)
    add("--aggregate", choices=("lse", "max", "mean"), default=gto.aggregate)
    return parser.parse_args(argv)


def job_of(chosen: argparse.Namespace) -> Job:
    """The command line as a job. `with_steps` fills in `--steps` and what depends on it."""
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
        objective=chosen.objective,
        num_steps=chosen.steps or 0,
        rate=chosen.rate or RATES[chosen.objective],
        warm_up_steps=chosen.warm_up or 0,
        seed=chosen.seed,
        batch=chosen.batch,
        accumulation=chosen.accumulation,
        max_len=chosen.max_len,
        dtype=chosen.dtype,
        checkpoint_every=chosen.checkpoint_every,
        gto=gto,
        block=BlockOptions(chosen.block, chosen.layers, chosen.correction, chosen.roots),
    )
    return Job(
        engine=EngineConfig(model=chosen.model, device=chosen.device, threads=torch.get_num_threads()),
        data=chosen.data,
        out=chosen.out,
        start=chosen.start,
        num_prompts=chosen.prompts,
        num_held_out=chosen.held_out,
        draft_vocab_size=chosen.draft_vocabulary,
        asking=Asking(tuple(chosen.temperatures), chosen.max_tokens, chosen.max_len, chosen.seed),
        options=options,
    )


def with_steps(options: TrainingOptions, num_answers: int) -> TrainingOptions:
    """Options with five epochs if no number of steps was given, and the paper's warm-up if it is short enough."""
    steps = options.num_steps or max(1, EPOCHS * num_answers // (options.batch * options.accumulation))
    return replace(options, num_steps=steps, warm_up_steps=options.warm_up_steps or min(1000, steps // 10))


def main(argv: Sequence[str] | None = None) -> int:
    """Train, write the head, and print the acceptance lengths."""
    chosen, console = parse(argv), Console()
    if chosen.threads is not None:
        torch.set_num_threads(chosen.threads)
    try:
        lengths = train(job_of(chosen), console)
    except GanderError as error:
        Console(stderr=True).print(f"[red]train-head:[/red] {escape(str(error))}", highlight=False, soft_wrap=True)
        return 2
    console.print(f"{chosen.out}: acceptance length {lengths['chain']} as a chain, {lengths['tree']} as a tree")
    return 0


if __name__ == "__main__":
    sys.exit(main())
