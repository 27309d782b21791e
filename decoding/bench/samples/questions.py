"""Problems with a number as their answer: the rows of a file in GSM8K's form, or the bundled model's held-out ones.

Knows no engine. Invariant: a question's prompt leaves room for its reply; a right answer follows `####`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase

from decoding.errors import ConfigError
from decoding.training.public_prompts import as_chat
from decoding.training.texts.prompts import held_out_exercises

PROMPT_SEED = 1
_ANSWER = re.compile(r"^#### *\$?(-?[\d,]*\d)(?:\.0*)?\s*$", re.MULTILINE)
_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")
_TEXT = "Question: {}\n\nAnswer: Let me solve step by step and end with a line such as #### 12.\n"
_MESSAGE = "{}\n\nShow your reasoning step by step, and end with a line such as #### 12."


@dataclass(frozen=True, slots=True)
class Question:
    """A prompt, int32 [p], and its right answer."""

    prompt: NDArray[np.int32]
    result: int | None


def read_number(text: str) -> int | None:
    """The number on the first `#### number` line, or else the last one of the text if it is whole: of models that
    answer in prose. None if there is none."""
    if found := _ANSWER.search(text):
        return int(found[1].replace(",", ""))
    numbers = _NUMBER.findall(text)
    last = float(numbers[-1].replace(",", "")) if numbers else 0.5
    return int(last) if last.is_integer() else None


def encoder(tokenizer: PreTrainedTokenizerBase) -> Callable[[str], list[int]]:
    """Encodes a problem, as a user's message where the tokenizer has a chat template and else as a text to go on
    with."""
    if tokenizer.chat_template:
        return lambda problem: as_chat(tokenizer, _MESSAGE.format(problem))
    return lambda problem: tokenizer.encode(_TEXT.format(problem))


def held_out(count: int, encode: Callable[[str], list[int]], room: int) -> list[Question]:
    """`count` of the bundled model's own problems. room: the most tokens of a prompt."""
    exercises = held_out_exercises("reasoning", count, PROMPT_SEED)
    return [_question(encode(exercise.prompt), exercise.result, room) for exercise in exercises]


def read_questions(file: Path, count: int, encode: Callable[[str], list[int]], room: int) -> list[Question]:
    """The first `count` rows of a file of {"prompt", "reference"} rows, whose reference ends in `#### number`. Raises
    ConfigError for a row that lacks a field or the number, and for an empty file."""
    found = []
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines()[:count], 1):
        row = json.loads(line)
        answer = _ANSWER.search(row.get("reference", ""))
        if "prompt" not in row or answer is None:
            raise ConfigError(f"{file.name}, line {number}: needs a prompt and a reference that ends in #### number")
        found.append(_question(encode(row["prompt"]), read_number(answer[0]), room))
    if not found:
        raise ConfigError(f"{file.name} has no rows")
    return found


def _question(ids: list[int], result: int | None, room: int) -> Question:
    return Question(np.array(ids[:room], np.int32), result)
