"""Reads the problems that patterns are measured on: the bundled model's held-out ones, or a JSON-lines file's.

Owns the form of their answers. Knows no engine.
Invariant: a question's prompt leaves room for its reply; a right answer follows `####`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
from transformers import PreTrainedTokenizerBase

from decoding.bench.stand.trajectories import Question
from decoding.training.public_prompts import as_chat
from decoding.training.texts.corpus import Skill
from decoding.training.texts.prompts import held_out_exercises

PROMPT_SEED = 1
_ANSWER = re.compile(r"^#### *\$?(-?[\d,]*\d)(?:\.0*)?\s*$", re.MULTILINE)
_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")
_TEXT = "Question: {}\n\nAnswer: Let me solve step by step and end with a line such as #### 12.\n"
_MESSAGE = "{}\n\nShow your reasoning step by step, and end with a line such as #### 12."


def read_number(text: str) -> int | None:
    """The whole number on the first `#### number` line, thousands separators allowed; None if there is none."""
    found = _ANSWER.search(text)
    return int(found[1].replace(",", "")) if found else None


def read_last_number(text: str) -> int | None:
    """The number after `####`, or else the last one of the text if it is whole: of models that answer in prose."""
    found = _NUMBER.findall(text)
    last = float(found[-1].replace(",", "")) if found else 0.5
    return read_number(text) or (int(last) if last.is_integer() else None)


def word_problems(tokenizer: PreTrainedTokenizerBase) -> Callable[[str], list[int]]:
    """Encodes a problem, as a user's message where the tokenizer has a chat template and else as a text to go on
    with."""
    if tokenizer.chat_template:
        return lambda problem: as_chat(tokenizer, _MESSAGE.format(problem))
    return lambda problem: tokenizer.encode(_TEXT.format(problem))


def held_out_questions(skill: Skill, count: int, encode: Callable[[str], list[int]], room: int) -> list[Question]:
    """`count` of the bundled model's own problems. room: the most tokens of a prompt. Programs and stories have no
    answer."""
    exercises = held_out_exercises(skill, count, PROMPT_SEED)
    return [_question(encode(exercise.prompt), exercise.result, room) for exercise in exercises]


def questions_of(file: Path, count: int, encode: Callable[[str], list[int]], room: int) -> list[Question]:
    """The first `count` rows of a file of {"prompt", "reference"} rows in GSM8K's form, whose reference ends in
    `#### number`. Raises ValueError for a row that lacks a field or the number."""
    found = []
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines()[:count], 1):
        row = json.loads(line)
        result = read_number(row.get("reference", ""))
        if "prompt" not in row or result is None:
            raise ValueError(f"{file.name}, line {number}: needs a prompt and a reference that ends in #### number")
        found.append(_question(encode(row["prompt"]), result, room))
    return found


def _question(ids: list[int], result: int | None, room: int) -> Question:
    return Question(np.array(ids[:room], np.int32), result)
