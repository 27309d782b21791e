"""Owns the held-out checks: a loss for each skill, and for each skill whether the model's replies are right.

Does not know how the model was trained. Invariant: replies are greedy, so the same weights give the same scores.
"""

import ast
import re
from dataclasses import asdict, dataclass

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn
from transformers import LlamaForCausalLM

from decoding.training.texts.corpus import END_OF_TEXT, END_OF_TURN, SKILLS, SPECIAL_TOKENS, Skill
from decoding.training.texts.prompts import Exercise, check_answer, held_out_exercises
from decoding.training.texts.words import ANIMALS, BOYS, GIRLS
from decoding.training.tokens import pack_batch, tokenise_held_out

GENERATED_TOKENS: dict[Skill, int] = {"code": 512, "reasoning": 200, "stories": 300}
BATCH_ROWS = 50
LOOP_WORDS = 8


@dataclass(frozen=True)
class Completion:
    """The model's text, without the end token, and whether it ended by itself."""

    text: str
    is_ended: bool


@dataclass(frozen=True)
class Scores:
    """Shares from 0 to 1 over the held-out prompts of each skill."""

    reasoning_correct: float
    reasoning_ended: float
    code_ended: float
    code_parses: float
    code_exact: float
    code_lines_as_expected: float
    stories_ended: float
    stories_without_loop: float
    stories_consistent: float

    def to_dict(self) -> dict[str, float]:
        """The scores for the evaluation file."""
        return {name: round(value, 4) for name, value in asdict(self).items()}


def held_out_losses(model: LlamaForCausalLM, tokenizer: Tokenizer, num_documents: int = 300) -> dict[str, float]:
    """Mean loss in nats for each learned token, by skill, in rows of 512 tokens."""
    return {skill: _loss(model, tokenizer, skill, num_documents) for skill in SKILLS}


def _loss(model: LlamaForCausalLM, tokenizer: Tokenizer, skill: Skill, num_documents: int) -> float:
    corpus = tokenise_held_out(tokenizer, 0, skill, num_documents)
    total, count, cursor, previous = 0.0, 0, 0, -1
    while cursor > previous:  # the cursor wraps when all documents are read
        previous = cursor
        batch = pack_batch(corpus, cursor, 1, 512)
        cursor = batch.cursor
        targets = batch.targets.to(model.device)
        with torch.inference_mode():
            logits = model(input_ids=batch.inputs.to(model.device), use_cache=False).logits
        total += float(nn.functional.cross_entropy(logits[0], targets[0], reduction="sum"))
        count += int((targets >= 0).sum())
    return round(total / count, 4)


def complete(model: LlamaForCausalLM, tokenizer: Tokenizer, prompts: list[str], num_tokens: int) -> list[Completion]:
    """Greedy completions, in batches of prompts of like length."""
    ends = [SPECIAL_TOKENS.index(END_OF_TEXT), SPECIAL_TOKENS.index(END_OF_TURN)]
    encoded = [tokenizer.encode(prompt, add_special_tokens=False).ids for prompt in prompts]
    order = sorted(range(len(prompts)), key=lambda index: len(encoded[index]))
    completions: dict[int, Completion] = {}
    for first in range(0, len(order), BATCH_ROWS):
        rows = order[first : first + BATCH_ROWS]
        generated = _generate(model, [encoded[row] for row in rows], num_tokens, ends)
        for row, ids in zip(rows, generated, strict=True):
            stop = next((index for index, token in enumerate(ids) if token in ends), None)
            text = tokenizer.decode(ids[:stop], skip_special_tokens=False)
            completions[row] = Completion(text, stop is not None)
    return [completions[index] for index in range(len(prompts))]


def _generate(model: LlamaForCausalLM, rows: list[list[int]], num_tokens: int, ends: list[int]) -> list[list[int]]:
    longest = max(map(len, rows))
    padded = torch.tensor([[ends[0]] * (longest - len(row)) + row for row in rows], device=model.device)
    mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows], device=model.device)
    with torch.inference_mode():
        output: Tensor = model.generate(
            input_ids=padded,
            attention_mask=mask,
            max_new_tokens=num_tokens,
            do_sample=False,
            eos_token_id=ends,
            pad_token_id=ends[0],
        )
    generated: list[list[int]] = output[:, longest:].tolist()
    return generated


def score_skills(model: LlamaForCausalLM, tokenizer: Tokenizer, num_problems: int, num_others: int) -> Scores:
    """All checks on the first held-out prompts of seed 0."""
    pairs = {
        skill: _pairs(model, tokenizer, skill, num_problems if skill == "reasoning" else num_others) for skill in SKILLS
    }
    reasoning, code, stories = pairs["reasoning"], pairs["code"], pairs["stories"]
    return Scores(
        reasoning_correct=_share([check_answer(exercise.prompt, done.text) for exercise, done in reasoning]),
        reasoning_ended=_share([done.is_ended for _, done in reasoning]),
        code_ended=_share([done.is_ended for _, done in code]),
        code_parses=_share([done.is_ended and _parses(exercise.prompt + done.text) for exercise, done in code]),
        code_exact=_share([done.text == exercise.reference for exercise, done in code]),
        code_lines_as_expected=sum(_line_share(exercise, done) for exercise, done in code) / len(code),
        stories_ended=_share([done.is_ended for _, done in stories]),
        stories_without_loop=_share([not has_loop(done.text) for _, done in stories]),
        stories_consistent=_share([is_consistent(exercise.prompt, done.text) for exercise, done in stories]),
    )


def _pairs(
    model: LlamaForCausalLM, tokenizer: Tokenizer, skill: Skill, count: int
) -> list[tuple[Exercise, Completion]]:
    exercises = held_out_exercises(skill, count)
    done = complete(model, tokenizer, [exercise.prompt for exercise in exercises], GENERATED_TOKENS[skill])
    return list(zip(exercises, done, strict=True))


def _share(hits: list[bool]) -> float:
    return sum(hits) / len(hits)


def _parses(source: str) -> bool:
    try:
        ast.parse(source)
    except (SyntaxError, ValueError):
        return False
    return True


def _line_share(exercise: Exercise, done: Completion) -> float:
    expected = exercise.reference.splitlines()
    hits = sum(left == right for left, right in zip(expected, done.text.splitlines(), strict=False))
    return hits / len(expected)


def has_loop(text: str) -> bool:
    """Whether any run of `LOOP_WORDS` words occurs twice."""
    words = text.split()
    runs = [tuple(words[start : start + LOOP_WORDS]) for start in range(len(words) - LOOP_WORDS + 1)]
    return len(set(runs)) < len(runs)


def is_consistent(prompt: str, text: str) -> bool:
    """Whether the text names only people and animals that the prompt names, or one more if the prompt names one."""
    for known in (frozenset(GIRLS + BOYS), frozenset(ANIMALS)):
        told, asked = (set(re.findall(r"[A-Za-z]+", part)) & known for part in (text, prompt))
        if len(told | asked) > 2:
            return False
    return True


def agreement(target: LlamaForCausalLM, draft: LlamaForCausalLM, tokenizer: Tokenizer, count: int) -> dict[str, float]:
    """By skill, the share of the target's greedy tokens that are also the draft's most likely token at that place."""
    shares: dict[str, float] = {}
    for skill in SKILLS:
        prompts = [exercise.prompt for exercise in held_out_exercises(skill, count)]
        hits = total = 0
        for prompt, done in zip(prompts, complete(target, tokenizer, prompts, GENERATED_TOKENS[skill]), strict=True):
            ids = tokenizer.encode(prompt + done.text, add_special_tokens=False).ids
            first = len(tokenizer.encode(prompt, add_special_tokens=False).ids)
            with torch.inference_mode():
                logits = draft(input_ids=torch.tensor([ids], device=draft.device), use_cache=False).logits[0]
            chosen = logits[first - 1 : -1].argmax(-1).tolist()
            hits += sum(left == right for left, right in zip(chosen, ids[first:], strict=True))
            total += len(chosen)
        shares[skill] = round(hits / total, 4)
    return shares
