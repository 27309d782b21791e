"""Owns the command that makes Gosling: corpus, tokenizer, target, draft, checks, model folder.

Does not know how each part works. Invariant: every part in the work folder is complete, so the command can be killed
at any time and started again.
"""

import argparse
import json
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from tokenizers import Tokenizer
from transformers import LlamaForCausalLM

from decoding.core.files.output import claim_folder, replace_file
from decoding.model.checkpoint import BUNDLED_FOLDER
from decoding.training.evaluate import Scores, agreement, held_out_losses, score_skills
from decoding.training.export import export_model, load_exported
from decoding.training.recipe import BUNDLED, Recipe
from decoding.training.tokenizer import train_tokenizer
from decoding.training.tokens import Shares, TokenisedCorpus, load_corpus, save_corpus, tokenise_mixture
from decoding.training.train import Shape, Trainer, make_model

DRAFT_FOLDER = "draft"
CACHE = Path("~/.cache/gander/gosling").expanduser()


@dataclass(frozen=True)
class Workplace:
    """A run's folders, seed, device and console."""

    out: Path
    work: Path
    seed: int
    device: torch.device
    console: Console


def prepare_tokenizer(place: Workplace) -> Tokenizer:
    """The tokenizer of the work folder; trained if it is missing."""
    path = place.work / "tokenizer.json"
    if not path.exists():
        place.console.print("Training the tokenizer.")
        with replace_file(path) as file:
            file.write(train_tokenizer(place.seed).to_str().encode())
    return Tokenizer.from_file(str(path))


def prepare_corpus(
    place: Workplace, tokenizer: Tokenizer, name: str, num_tokens: int, shares: Shares
) -> TokenisedCorpus:
    """The named tokenised corpus of the work folder; made if it is missing."""
    path = place.work / f"{name}.npz"
    if not path.exists():
        place.console.print(f"Making the {name} of {num_tokens:,} tokens.")
        save_corpus(tokenise_mixture(tokenizer, place.seed, num_tokens, shares), path)
    return load_corpus(path)


def run_trainer(place: Workplace, trainer: Trainer, name: str) -> None:
    """Takes the remaining steps, with a progress bar."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=place.console) as bars:
        bar = bars.add_task(name, total=trainer.plan.num_steps, completed=trainer.progress.step)
        while not trainer.is_done:
            loss = trainer.take_step()
            bars.update(bar, completed=trainer.progress.step, description=f"{name} loss {loss:.3f}")


def fresh_model(place: Workplace, shape: Shape) -> LlamaForCausalLM:
    """A new model with weights from the seed, on the run's device."""
    return make_model(shape, place.seed).to(place.device)


def tell(runs: list[Trainer], losses: dict[str, float], scores: Scores) -> dict[str, Any]:
    """What the evaluation file says of a model trained in one or more runs."""
    return {
        "parameters": sum(weight.numel() for weight in runs[0].model.parameters()),
        "steps": sum(run.progress.step for run in runs),
        "training_tokens": sum(run.progress.num_tokens for run in runs),
        "training_seconds": round(sum(run.progress.seconds for run in runs)),
        "held_out_loss": losses,
        "scores": scores.to_dict(),
    }


def train_target(place: Workplace, recipe: Recipe, tokenizer: Tokenizer, corpus: TokenisedCorpus) -> list[Trainer]:
    """The target's two runs over the same weights: the corpus, then the practice."""
    model = fresh_model(place, recipe.target_shape)
    runs = [Trainer(model, corpus, recipe.target_plan, place.work / "target.pt")]
    run_trainer(place, runs[0], "target")
    practice = prepare_corpus(place, tokenizer, "practice", recipe.practice_tokens, recipe.practice_shares)
    runs.append(Trainer(model, practice, recipe.practice_plan, place.work / "practice.pt"))
    run_trainer(place, runs[1], "practice")
    model.eval()
    return runs


def make_gosling(place: Workplace, recipe: Recipe) -> dict[str, Any]:
    """Make all parts and write the model folder with its `evaluation.json`, whose content it returns."""
    tokenizer = prepare_tokenizer(place)
    corpus = prepare_corpus(place, tokenizer, "corpus", recipe.corpus_tokens, recipe.shares)
    runs = train_target(place, recipe, tokenizer, corpus)
    target = runs[0].model
    draft = Trainer(fresh_model(place, recipe.draft_shape), corpus, recipe.draft_plan, place.work / "draft.pt", target)
    run_trainer(place, draft, "draft")
    place.console.print("Writing the model folder and checking it.")
    export_model(target, tokenizer, place.out)
    export_model(draft.model, tokenizer, place.out / DRAFT_FOLDER)
    evaluation = check_folder(place, recipe, tokenizer, runs, [draft])
    (place.out / "evaluation.json").write_text(json.dumps(evaluation, indent=2) + "\n", encoding="utf-8")
    return evaluation


def check_folder(
    place: Workplace, recipe: Recipe, tokenizer: Tokenizer, target: list[Trainer], draft: list[Trainer]
) -> dict[str, Any]:
    """Evaluate the written weights, which are rounded, instead of the trained ones."""
    model = load_exported(place.out, place.device)
    small = load_exported(place.out / DRAFT_FOLDER, place.device)
    counts = (recipe.num_problems, recipe.num_other_prompts)
    return {
        "seed": place.seed,
        "held_out_problems": recipe.num_problems,
        "held_out_prompts_of_other_skills": recipe.num_other_prompts,
        "target": tell(target, held_out_losses(model, tokenizer), score_skills(model, tokenizer, *counts)),
        "draft": tell(draft, held_out_losses(small, tokenizer), score_skills(small, tokenizer, *counts)),
        "draft_agrees_with_target": agreement(model, small, tokenizer, recipe.num_other_prompts),
        "versions": {name: version(name) for name in ("torch", "transformers")},
    }


def choose_device(name: str) -> torch.device:
    """The device by its name; `auto` is the GPU if there is one."""
    return torch.device(("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name)


def parse_arguments(arguments: Iterable[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m decoding.training.gosling", description="Make Gosling.")
    parser.add_argument("--out", type=Path, default=BUNDLED_FOLDER, help="the model folder to write")
    parser.add_argument("--work", type=Path, default=CACHE, help="the folder of corpus and checkpoints")
    parser.add_argument("--seed", type=int, default=0, help="the seed of corpus, weights and prompts")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    return parser.parse_args(None if arguments is None else list(arguments))


def main() -> None:
    """Runs the command."""
    chosen = parse_arguments()
    for folder in {chosen.out, chosen.work} - {BUNDLED_FOLDER, CACHE}:
        claim_folder(folder)
    place = Workplace(chosen.out, chosen.work, chosen.seed, choose_device(chosen.device), Console())
    place.console.print_json(data=make_gosling(place, BUNDLED))


if __name__ == "__main__":
    main()
