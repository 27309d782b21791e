"""The scripts to replay: single prompts, questions through the chat template, samples of one problem, edits with a
prediction, the turns of a chat.

Knows nothing of engines or methods. Invariant: the same arguments give the same scripts, and a script's later prompts
depend only on the model's replies, which are the same with every method.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from decoding.bench import workload as workloads
from decoding.bench.workload import PROMPT_SEED, PromptChoice, load_workload
from decoding.training.texts.corpus import ASSISTANT, END_OF_TURN, USER
from decoding.training.texts.prompts import held_out_exercises

SAMPLES, EDIT, CHAT, RANDOM = "samples", "edit", "chat", "random"
NAMES = (*workloads.SKILLS, workloads.HUMANEVAL, workloads.WIKITEXT, *workloads.ASKED, SAMPLES, EDIT, CHAT, RANDOM)
NUM_SAMPLES = 12

_CHAT = (
    "Tell me a story about a fox and an owl.",
    "Thank you for the story! Now tell me a story about a bear.",
    "Please tell me the story about the fox again.",
    "Write a Python function called count_words.",
    "Write the function count_words in Python again.",
    "Tell me a story about a fox and a bear.",
)
_NAME = re.compile(r"\bself\.([a-z_]{3,})|\bdef ([a-z_]{3,})")

Tokens = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Turn:
    """tokens: int32 [p], the prompt, or, if the turn continues a chat, its part after the last reply. prediction:
    int32."""

    tokens: Tokens
    seed: int
    goes_on: bool = False
    prediction: Tokens = field(default_factory=lambda: np.empty(0, np.int32))


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """Turns of one session, in order. ignore_eos: replies continue past end tokens. is_sampled: the script makes no
    sense at temperature 0. is_random: for a model with random weights."""

    name: str
    turns: tuple[Turn, ...]
    max_tokens: int
    ignore_eos: bool = False
    is_sampled: bool = False
    is_random: bool = False


def load_script(name: str, tokenizer: Tokenizer, choice: PromptChoice) -> Script | None:
    """The script; None if its file is missing or the model has no chat template or chat tokens."""
    own: dict[str, Callable[[Tokenizer, PromptChoice], Script | None]] = {
        SAMPLES: _samples,
        EDIT: _edit,
        CHAT: _chat,
        RANDOM: _random,
    }
    if name in own:
        return own[name](tokenizer, choice)
    found = load_workload(name, tokenizer, choice)
    if found is None:
        return None
    turns = tuple(Turn(prompt, seed) for seed, prompt in enumerate(found.prompts))
    # the papers' runs on WikiText go on past end tokens
    return Script(name=name, turns=turns, max_tokens=choice.max_tokens, ignore_eos=name == workloads.WIKITEXT)


def load_scripts(
    names: Sequence[str], tokenizer: Tokenizer, choice: PromptChoice, say: Callable[[str], None]
) -> list[Script]:
    """The scripts that can be loaded; `say` gets a sentence about each of the others."""
    found = []
    for name in names:
        script = load_script(name, tokenizer, choice)
        if script is None:
            say(f"The workload {name} is left out: its file is not in --data, or it has no turns.")
        else:
            found.append(script)
    return found


def _samples(tokenizer: Tokenizer, choice: PromptChoice) -> Script:
    (exercise,) = held_out_exercises("reasoning", 1, PROMPT_SEED)
    prompt = _encode(tokenizer, exercise.prompt)
    turns = tuple(Turn(prompt, seed) for seed in range(NUM_SAMPLES))
    return Script(name=SAMPLES, turns=turns, max_tokens=choice.max_tokens, is_sampled=True)


def _edit(tokenizer: Tokenizer, choice: PromptChoice) -> Script:
    """Prompts with a program and the beginning of a copy with one name changed; the unchanged rest is the
    prediction."""
    turns = []
    for seed, exercise in enumerate(held_out_exercises("code", 4 * choice.count, PROMPT_SEED)):
        whole = exercise.prompt + exercise.reference
        renamed = _rename(exercise.prompt, most_used_name(whole))
        prompt = _encode(tokenizer, f"{whole.rstrip()}\n\n\n{renamed}")
        if len(prompt) <= choice.max_prompt_len:
            turns.append(Turn(prompt, seed, prediction=_encode(tokenizer, exercise.reference)))
    return Script(name=EDIT, turns=tuple(turns[: choice.count]), max_tokens=choice.max_tokens)


def most_used_name(program: str) -> str:
    """The most frequent name of a program's methods, attributes and functions."""
    names = Counter(attribute or function for attribute, function in _NAME.findall(program))
    return names.most_common(1)[0][0]


def _rename(program: str, name: str) -> str:
    return re.sub(rf"\b{name}\b", f"{name}_now", program)


def _chat(tokenizer: Tokenizer, choice: PromptChoice) -> Script | None:
    if tokenizer.token_to_id(USER) is None:
        return None
    texts = [f"{USER}{asked}{END_OF_TURN}{ASSISTANT}" for asked in _CHAT]
    turns = tuple(Turn(_encode(tokenizer, text), seed, goes_on=seed > 0) for seed, text in enumerate(texts))
    return Script(name=CHAT, turns=turns, max_tokens=choice.max_tokens)


def _random(tokenizer: Tokenizer, choice: PromptChoice) -> Script | None:
    script = load_script("stories", tokenizer, choice)
    return None if script is None else replace(script, name=RANDOM, ignore_eos=True, is_random=True)


def _encode(tokenizer: Tokenizer, text: str) -> Tokens:
    return np.array(tokenizer.encode(text, add_special_tokens=False).ids, np.int32)


def prompt_of(turn: Turn, before: Sequence[Tokens], most: int) -> Tokens:
    """A turn's whole prompt, cut to its last `most` tokens. before: the earlier prompts and replies of the session."""
    prompt = np.concatenate((*before, turn.tokens)) if turn.goes_on else turn.tokens
    return prompt[-most:]
