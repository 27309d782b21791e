"""Reads the problems that patterns are measured on: the bundled model's held-out ones, or a JSON-lines file's.

Owns the form of their answers. Knows no engine.
Invariant: a question's prompt leaves room for its reply, and the answer follows `####`.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from decoding.bench.stand.trajectories import Question
from decoding.training.texts.corpus import Skill
from decoding.training.texts.prompts import held_out_exercises

PROMPT_SEED = 1
_ANSWER = re.compile(r"^#### *\$?(-?[\d,]*\d)(?:\.0*)?\s*$", re.MULTILINE)
_WORD_PROBLEM = "Question: {}\n\nAnswer: Let me solve step by step and end with a line such as #### 12.\n"


def read_number(text: str) -> int | None:
    """The whole number on the first `#### number` line, thousands separators allowed; None if there is none."""
    found = _ANSWER.search(text)
    return int(found[1].replace(",", "")) if found else None


def held_out_questions(skill: Skill, count: int, tokenizer: Tokenizer, room: int) -> list[Question]:
    """`count` of the bundled model's own problems. room: the most tokens of a prompt. Programs and stories have no
    answer."""
    exercises = held_out_exercises(skill, count, PROMPT_SEED)
    return [_question(exercise.prompt, exercise.result, tokenizer, room) for exercise in exercises]


def questions_of(file: Path, count: int, tokenizer: Tokenizer, room: int) -> list[Question]:
    """The first `count` rows of a file of {"prompt", "reference"} rows in GSM8K's form, whose reference ends in
    `#### number`. Raises ValueError for a row that lacks a field or the number."""
    found = []
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines()[:count], 1):
        row = json.loads(line)
        result = read_number(row.get("reference", ""))
        if "prompt" not in row or result is None:
            raise ValueError(f"{file.name}, line {number}: needs a prompt and a reference that ends in #### number")
        found.append(_question(_WORD_PROBLEM.format(row["prompt"]), result, tokenizer, room))
    return found


def _question(prompt: str, result: int | None, tokenizer: Tokenizer, room: int) -> Question:
    return Question(np.array(tokenizer.encode(prompt).ids[:room], np.int32), result)
