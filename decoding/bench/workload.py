"""Workloads: held-out prompts of the bundled model's three skills, prompt files from elsewhere, and public prompts
through a model's chat template.

Knows nothing of engines or methods. Invariant: the same arguments give the same prompts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from decoding.bench.contestant import Task
from decoding.training.public_prompts import PROMPT_SETS, as_chat, read_prompts
from decoding.training.texts.corpus import SKILLS
from decoding.training.texts.prompts import held_out_prompts

HUMANEVAL = "humaneval"
WIKITEXT = "wikitext"
# Prompt sets that are asked through the chat template; of HumanEval the plain name is the one without it.
ASKED = {name: name for name in ("gsm8k", "mt_bench", "edit", "summary")} | {"humaneval_chat": HUMANEVAL}
FILES = {HUMANEVAL: "humaneval.jsonl", WIKITEXT: "wikitext2_valid_prompts_800c.jsonl"}
NAMES = (*SKILLS, *FILES, *ASKED)
PROMPT_SEED = 1  # the model card's own checks use seed 0

Tokens = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Workload:
    """Prompts to answer one after the other, int32 [p] each, with at most `max_tokens` new tokens.

    predictions: of the replies, as many as prompts, or none. ignore_eos: replies continue past end tokens.
    """

    name: str
    prompts: tuple[Tokens, ...]
    max_tokens: int
    predictions: tuple[Tokens, ...] = ()
    ignore_eos: bool = False

    def tasks(self, temperature: float) -> list[Task]:
        """One for each prompt, with a seed of its own."""
        predictions = self.predictions or (np.empty(0, np.int32),) * len(self.prompts)
        return [
            Task(
                prompt=prompt,
                max_tokens=self.max_tokens,
                temperature=temperature,
                seed=seed,
                ignore_eos=self.ignore_eos,
                prediction=prediction,
            )
            for seed, (prompt, prediction) in enumerate(zip(self.prompts, predictions, strict=True))
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptChoice:
    """The number of prompts, their most tokens, and the folder of prompt files, if there is one. chat: the token ids of
    a user's message through the model's chat template."""

    count: int
    max_tokens: int
    max_prompt_len: int
    data: Path | None = None
    chat: Callable[[str], Sequence[int]] | None = None


def load_workload(name: str, tokenizer: Tokenizer, choice: PromptChoice) -> Workload | None:
    """The workload; None if its file is missing or the model has no chat template. Prompts that are too long are
    skipped."""
    if name in ASKED:
        return _asked(name, tokenizer, choice)
    texts = _texts(name, choice)
    if texts is None:
        return None
    prompts = [ids for text in texts if 1 <= len(ids := _encode(tokenizer, text)) <= choice.max_prompt_len]
    # the papers' runs on WikiText go on past end tokens
    return Workload(name, tuple(prompts[: choice.count]), choice.max_tokens, ignore_eos=name == WIKITEXT)


def _asked(name: str, tokenizer: Tokenizer, choice: PromptChoice) -> Workload | None:
    prompt_set = ASKED[name]
    if choice.data is None or choice.chat is None or not (choice.data / PROMPT_SETS[prompt_set].file).is_file():
        return None
    (prompts,) = read_prompts(choice.data, [prompt_set], choice.count).values()
    asked = tuple(np.array(choice.chat(each.turns[0]), np.int32) for each in prompts)
    expected = tuple(_encode(tokenizer, each.prediction or "") for each in prompts)
    return Workload(name, asked, choice.max_tokens, expected)


def _encode(tokenizer: Tokenizer, text: str) -> Tokens:
    return np.array(tokenizer.encode(text, add_special_tokens=False).ids, np.int32)


def _chat_of(folder: Path) -> Callable[[str], list[int]] | None:
    """What encodes a user's message for the model in a folder, if it has a chat template."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    return partial(as_chat, tokenizer) if tokenizer.chat_template else None


def load_workloads(
    names: Iterable[str], folder: Path, choice: PromptChoice, tell: Callable[[str], object]
) -> list[Workload]:
    """The workloads whose file exists, for the model in a folder; a sentence reports each of the others."""
    tokenizer, choice = Tokenizer.from_file(str(folder / "tokenizer.json")), replace(choice, chat=_chat_of(folder))
    found = []
    for name in names:
        workload = load_workload(name, tokenizer, choice)
        if workload is None:
            tell(f"The workload {name} is left out: its prompt file is not in --data, or there is no chat template.")
        else:
            found.append(workload)
    return found


def _texts(name: str, choice: PromptChoice) -> list[str] | None:
    for skill in SKILLS:
        if skill == name:
            return held_out_prompts(skill, 2 * choice.count, PROMPT_SEED)
    path = choice.data / FILES[name] if choice.data else None
    if path is None or not path.is_file():
        return None
    lines = path.read_text(encoding="utf-8").splitlines()
    prompts: list[str] = [json.loads(line)["prompt"] for line in lines]
    return prompts
