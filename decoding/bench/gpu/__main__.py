"""Measures tokens a second on a GPU, plain and drafted, with transformers and vLLM: `make bench-gpu` writes
docs/gpu.md.

Without a CUDA device it only prints a message.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
import torch
from rich.console import Console
from transformers import AutoTokenizer

from decoding.bench.gpu.contestants import CONTESTANTS, Measured, Task
from decoding.bench.machine import describe_machine
from decoding.bench.tables.report import command_line, is_page, write_section
from decoding.bench.tables.table import table
from decoding.bench.workload import PromptChoice, load_workload
from decoding.config import BUNDLED_MODEL
from decoding.core.files.output import check_output
from decoding.model.checkpoint import folder_of
from decoding.training.texts.corpus import SKILLS

BATCHES = (1, 2, 4, 8, 16, 32, 64)
LONGEST_PROMPT = 512


def read_options(given: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m decoding.bench.gpu", description=__doc__)
    parser.add_argument("--model", default=BUNDLED_MODEL, help="a hub name or a folder")
    parser.add_argument("--device", default="cuda", help="cuda or cuda:N; cpu to try this program out")
    parser.add_argument("--batches", type=int, nargs="+", default=BATCHES, help="requests that run together")
    parser.add_argument("--max-tokens", type=int, default=256, help="of each reply")
    parser.add_argument("--compile", action="store_true", help="compile our own forwards")
    parser.add_argument("--only", nargs="+", choices=CONTESTANTS, default=list(CONTESTANTS))
    parser.add_argument("--page", type=Path, default=Path("docs/gpu.md"))
    return parser.parse_args(given)


def task_of(options: argparse.Namespace) -> Task:
    """Prompts of all skills in turn, as many as the largest batch needs."""
    tokenizer = AutoTokenizer.from_pretrained(folder_of(options.model)).backend_tokenizer
    most = max(options.batches)
    choice = PromptChoice(count=-(-most // len(SKILLS)), max_tokens=options.max_tokens, max_prompt_len=LONGEST_PROMPT)
    found = [load_workload(skill, tokenizer, choice) for skill in SKILLS]
    turns = zip(*(workload.prompts for workload in found if workload is not None), strict=False)
    prompts = [prompt.tolist() for turn in turns for prompt in turn]
    prompts *= -(-most // len(prompts))
    return Task(
        model=options.model,
        device=options.device,
        prompts=prompts[:most],
        max_tokens=options.max_tokens,
        batches=list(options.batches),
        compile=options.compile,
    )


def run(name: str, task: Task) -> list[Measured] | str:
    """A contestant's measurements, or the last line of its error."""
    command = [sys.executable, "-m", "decoding.bench.gpu.contestants", name]
    done = subprocess.run(command, input=msgspec.json.encode(task), capture_output=True, check=False)
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else f"ended with status {done.returncode}"
    return msgspec.json.decode(done.stdout.splitlines()[-1], type=list[Measured])


def render(results: dict[str, list[Measured]], batches: Sequence[int]) -> str:
    """A table of tokens a second of all requests together, prompts included."""
    rows = []
    for name, measured in results.items():
        rates = {each.batch: each.tokens / each.seconds for each in measured}
        rows.append([name, *(f"{rates[batch]:,.0f}" for batch in batches)])
    return table(["tokens a second at batch", *map(str, batches)], rows)


def main(given: Sequence[str]) -> None:
    options, console = read_options(given), Console()
    if options.device.startswith("cuda") and not torch.cuda.is_available():
        console.print("There is no GPU that torch can use here, so nothing was measured.")
        return
    check_output(options.page, is_page)
    task, results = task_of(options), {}
    for name in options.only:
        console.print(f"{name} ...")
        found = run(name, task)
        if isinstance(found, str):
            console.print(f"{name} is left out: {found}")
        else:
            results[name] = found
    where = describe_machine()
    if options.device.startswith("cuda"):
        where = f"{torch.cuda.get_device_name(options.device)}, {where}"
    command = command_line("python -m decoding.bench.gpu", given)
    made = f"`{command}` on {where}.\n\n{render(results, options.batches)}"
    write_section(options.page, "# GPUs\n", "measured", made)
    console.print(made, markup=False)


if __name__ == "__main__":
    main(sys.argv[1:])
