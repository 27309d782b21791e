"""What pretrained models are asked: public prompt sets, read from a folder that is not part of this repository.

Knows nothing of engines or servers. Invariant: the same folder and number give the same prompts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from decoding.errors import ConfigError

LONGEST_EDIT = 1500  # characters of the program that is to be edited
LONGEST_ARTICLE = 4000  # characters of the text that is to be summed up, about a thousand tokens
RECORD: dict[str, Any] = {
    "type": "object",
    "properties": {
        "title": {"type": "string"},
        "kind": {"enum": ["person", "place", "event", "work", "organisation", "species", "other"]},
        "names": {"type": "array", "items": {"type": "string"}, "maxItems": 8},
        "years": {"type": "array", "items": {"type": "integer"}, "maxItems": 8},
        "summary": {"type": "string"},
    },
    "required": ["title", "kind", "names", "years", "summary"],
    "additionalProperties": False,
}


@dataclass(frozen=True, slots=True)
class Prompt:
    """turns: what the user says, each turn after the reply to the one before. prediction: a text that the reply will
    mostly repeat; schema: the JSON schema that it must follow."""

    turns: tuple[str, ...]
    prediction: str | None = None
    schema: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class PromptSet:
    """file: of JSON lines; prompt: what a user would ask about a row, or None to pass the row over."""

    title: str
    file: str
    prompt: Callable[[dict[str, Any]], Prompt | None]


def _reasoning(row: dict[str, Any]) -> Prompt:
    return Prompt((f"{row['prompt']}\n\nShow your reasoning step by step, then give the answer.",))


def _code(row: dict[str, Any]) -> Prompt:
    return Prompt((f"Write the whole of this Python function:\n\n```python\n{row['prompt'].rstrip()}\n```",))


def _edit(row: dict[str, Any]) -> Prompt | None:
    program = row["reference"].strip()
    if len(program) > LONGEST_EDIT:
        return None
    asked = "Give every function of this program type hints. Reply with the whole program:"
    return Prompt((f"{asked}\n\n```python\n{program}\n```",), prediction=f"```python\n{program}\n```")


def _summary(row: dict[str, Any]) -> Prompt:
    return Prompt((f"Sum up this text in one paragraph:\n\n{row['prompt'].strip()[:LONGEST_ARTICLE]}",))


def _record(row: dict[str, Any]) -> Prompt:
    asked = f"Fill in a JSON record of this text, with {', '.join(RECORD['required'])}:"
    return Prompt((f"{asked}\n\n{row['prompt'].strip()}",), schema=RECORD)


PROMPT_SETS = {
    "gsm8k": PromptSet("GSM8K", "gsm8k_test.jsonl", _reasoning),
    "humaneval": PromptSet("HumanEval", "humaneval.jsonl", _code),
    "mt_bench": PromptSet("MT-Bench", "mt_bench.jsonl", lambda row: Prompt(tuple(row.get("turns") or [row["prompt"]]))),
    "edit": PromptSet("edit a file", "classeval.jsonl", _edit),
    "summary": PromptSet("sum up a text", "wikitext2_test.jsonl", _summary),
    "json": PromptSet("JSON by schema", "wikitext2_valid_prompts_800c.jsonl", _record),
}


TRAINING_SETS = {
    "gsm8k": replace(PROMPT_SETS["gsm8k"], file="gsm8k_train_2000.jsonl"),
    **{name: PROMPT_SETS[name] for name in ("humaneval", "mt_bench", "edit")},
}
MEASURED, TRAINED_ON = slice(0, None, 2), slice(1, None, 2)  # rows of a file


def read_prompts(folder: Path, names: Sequence[str], count: int) -> dict[str, list[Prompt]]:
    """`count` prompts of each set, or as many as there are, evenly spread over the rows of even places in its file. A
    set whose file is not there is left out.

    Raises ConfigError for a set that is not known, a row that is no prompt, and a folder without any of the files.
    """
    unknown = set(names) - set(PROMPT_SETS)
    if unknown:
        raise ConfigError(f"there is no workload {', '.join(sorted(unknown))}; there are {', '.join(PROMPT_SETS)}")
    return _read(folder, {name: PROMPT_SETS[name] for name in names}, MEASURED, count)


def training_prompts(folder: Path, count: int) -> dict[str, list[Prompt]]:
    """Like `read_prompts`, of each training set and its rows of odd places, which nothing is measured on."""
    return _read(folder, TRAINING_SETS, TRAINED_ON, count)


def as_chat(tokenizer: PreTrainedTokenizerBase, said: str) -> list[int]:
    """The token ids of a user's message through the tokenizer's chat template, up to where the reply begins."""
    conversation = [{"role": "user", "content": said}]
    ids: list[int] = tokenizer.apply_chat_template(conversation, add_generation_prompt=True, return_dict=False)
    return ids


def read_text(path: Path) -> str:
    """The text of a file, or of all rows' `prompt` where it is one of JSON lines. Raises ConfigError."""
    try:
        if path.suffix != ".jsonl":
            return path.read_text(encoding="utf-8")
        return "\n".join(row["prompt"] for row in _rows(path))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} has no text: {type(error).__name__}: {error}") from error


def _read(folder: Path, sets: dict[str, PromptSet], rows: slice, count: int) -> dict[str, list[Prompt]]:
    found = {name: _spread(_prompts(folder / each.file, each)[rows], count) for name, each in sets.items()}
    if not any(found.values()):
        raise ConfigError(f"{folder} has no prompts in {', '.join(each.file for each in sets.values())}")
    return {name: prompts for name, prompts in found.items() if prompts}


def _prompts(path: Path, prompt_set: PromptSet) -> list[Prompt]:
    if not path.is_file():
        return []
    try:
        return [prompt for row in _rows(path) if (prompt := prompt_set.prompt(row)) is not None]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{path} has a row that is no prompt: {type(error).__name__}: {error}") from error


def _rows(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]


def _spread(prompts: Sequence[Prompt], count: int) -> list[Prompt]:
    taken = min(count, len(prompts))
    return [prompts[place * len(prompts) // taken] for place in range(taken)]
