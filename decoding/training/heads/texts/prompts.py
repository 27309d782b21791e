"""Owns the prompts that answers are generated for: from a file, or from the bundled model's training texts.

Does not know the target. Invariant: the same arguments give the same prompts, none of them held out.
"""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

from transformers import AutoTokenizer

from decoding.errors import ConfigError
from decoding.training.texts.corpus import SKILLS, Document, generate_documents

GENERATED = "generate"
FIELDS = ("prompt", "question", "problem")  # fields of a JSON line that may hold the prompt
ROLES = {"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "system": "system"}
CUTS = (0.15, 0.5)  # a text without a question is cut between these shares to become a prompt


def no_data(given: str) -> ConfigError:
    """Of what is given as data and is none."""
    return ConfigError(f"data {given!r} is neither {GENERATED!r}, a file of prompts nor a folder of answers")


def tokenizer_of(model: str) -> Any:
    """That of a folder or hub name. Raises ConfigError where it cannot be loaded."""
    try:
        return AutoTokenizer.from_pretrained(model)
    except (OSError, ValueError) as error:
        raise ConfigError(f"the tokenizer of {model!r} cannot be loaded: {str(error).splitlines()[0]}") from error


def generated_prompts(model: str, count: int, seed: int) -> list[list[int]]:
    """Questions and beginnings of programs and stories from the training side of the bundled model's generators,
    encoded by the tokenizer of `model`, a folder or hub name."""
    random, tokenizer = Random(f"heads-{seed}"), tokenizer_of(model)
    streams = [generate_documents(skill, seed + 1, held_out=False) for skill in SKILLS]
    texts = [_beginning(next(streams[place % len(streams)]), random) for place in range(count)]
    return [tokenizer(text)["input_ids"] for text in texts]


def _beginning(document: Document, random: Random) -> str:
    first = document.segments[0]
    if not first.is_learned:
        return first.text
    return _cut(first.text, random)


def prompts_of_file(path: Path, model: str, count: int, seed: int = 0) -> list[list[int]]:
    """The first `count` prompts of a file of plain lines or JSON lines. A conversation becomes a prompt up to its first
    answer, by the chat template of `model`; of a `text` the beginning is one. Raises ConfigError for a line without a
    prompt."""
    random, tokenizer = Random(f"texts-{seed}"), tokenizer_of(model)
    prompts = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines()[:count], start=1):
        record: dict[str, Any] = json.loads(line) if line.startswith("{") else {"prompt": line}
        turns = record.get("conversations") or record.get("messages")
        if turns:
            text = tokenizer.apply_chat_template(_asked(turns), tokenize=False, add_generation_prompt=True)
        elif record.get("text"):
            text = _cut(str(record["text"]), random)
        else:
            text = next((str(record[field]) for field in FIELDS if field in record), "")
        if not text:
            names = ", ".join((*FIELDS, "text"))
            raise ConfigError(f"line {number} of {path} holds neither a conversation nor any of {names}")
        prompts.append(tokenizer(text, add_special_tokens=not turns)["input_ids"])
    return prompts


def _cut(text: str, random: Random) -> str:
    return text[: max(1, int(len(text) * random.uniform(*CUTS)))]


def _asked(turns: list[dict[str, str]]) -> list[dict[str, str]]:
    """The turns before the first answer, with the role names of chat templates."""
    asked = []
    for turn in turns:
        role = ROLES[turn["from"] if "from" in turn else turn["role"]]
        if role == "assistant":
            break
        asked.append({"role": role, "content": turn["value"] if "value" in turn else turn["content"]})
    return asked
