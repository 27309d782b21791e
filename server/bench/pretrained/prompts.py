"""What pretrained models are asked: public prompt sets, read from a folder that is not part of this repository.

Knows nothing of servers. Invariant: the same folder and number give the same prompts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from server.bench.errors import PromptFileError

LONGEST_EDIT = 1500  # characters of the program that is to be edited


@dataclass(frozen=True, slots=True)
class Workload:
    """file: of JSON lines; prompt: what a user would ask about a row, or None to pass the row over."""

    title: str
    file: str
    prompt: Callable[[dict[str, Any]], str | None]


def _reasoning(row: dict[str, Any]) -> str:
    return f"{row['prompt']}\n\nShow your reasoning step by step, then give the answer."


def _code(row: dict[str, Any]) -> str:
    return f"Write the whole of this Python function:\n\n```python\n{row['prompt'].rstrip()}\n```"


def _edit(row: dict[str, Any]) -> str | None:
    program = row["reference"].strip()
    if len(program) > LONGEST_EDIT:
        return None
    return f"Give every function of this program type hints. Reply with the whole program:\n\n```python\n{program}\n```"


WORKLOADS = {
    "gsm8k": Workload("GSM8K", "gsm8k_test.jsonl", _reasoning),
    "humaneval": Workload("HumanEval", "humaneval.jsonl", _code),
    "mt_bench": Workload("MT-Bench", "mt_bench.jsonl", lambda row: row["prompt"]),
    "edit": Workload("edit a file", "classeval.jsonl", _edit),
}


def read_prompts(folder: Path, names: Sequence[str], count: int) -> dict[str, list[str]]:
    """`count` prompts of each workload, or as many as there are, evenly spread over its file. A workload whose file is
    not there is left out.

    Raises PromptFileError for a workload that is not known, a row that is none, and a folder without any of the files.
    """
    unknown = set(names) - set(WORKLOADS)
    if unknown:
        raise PromptFileError(f"there is no workload {', '.join(sorted(unknown))}; there are {', '.join(WORKLOADS)}")
    found = {name: _spread(_prompts(folder / WORKLOADS[name].file, WORKLOADS[name]), count) for name in names}
    if not any(found.values()):
        raise PromptFileError(f"{folder} has no prompts in {', '.join(WORKLOADS[name].file for name in names)}")
    return {name: prompts for name, prompts in found.items() if prompts}


def _prompts(path: Path, workload: Workload) -> list[str]:
    if not path.is_file():
        return []
    try:
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
        return [prompt for row in rows if (prompt := workload.prompt(row)) is not None]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise PromptFileError(f"{path} has a row that is no prompt: {type(error).__name__}: {error}") from error


def _spread(prompts: Sequence[str], count: int) -> list[str]:
    taken = min(count, len(prompts))
    return [prompts[place * len(prompts) // taken] for place in range(taken)]
