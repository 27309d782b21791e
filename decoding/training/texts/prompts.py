"""Owns the held-out prompts for benchmarks and tests, with their expected continuations. Needs no torch.

Does not know models. Invariant: a prompt depends only on (skill, index, seed), and no training document has its
problem.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import islice
from random import Random

from decoding.training.texts.arithmetic import raw_prompt, read_answer
from decoding.training.texts.corpus import Skill, draw_split_problem
from decoding.training.texts.programs import draw_program
from decoding.training.texts.split import draw_from_side
from decoding.training.texts.stories import draw_story

MAX_PROMPTS = 500
MAX_SEED = 3
SOLVED_EXAMPLE_SHARE = 0.3
CODE_CHARACTERS = range(450, 900)  # about 150 to 300 tokens


@dataclass(frozen=True)
class Exercise:
    """A prompt, the text that would follow it in the corpus and, for word problems, the result."""

    prompt: str
    reference: str
    result: int | None = None


class UnknownPromptError(ValueError):
    """The prompt is not one of `held_out_prompts("reasoning", ...)`."""


def held_out_prompts(skill: Skill, count: int, seed: int = 0) -> list[str]:
    """`count` prompts (at most `MAX_PROMPTS`) of a skill; a larger count begins with the same prompts."""
    return [exercise.prompt for exercise in held_out_exercises(skill, count, seed)]


def held_out_exercises(skill: Skill, count: int, seed: int = 0) -> list[Exercise]:
    """The prompts of `held_out_prompts` with their expected continuations."""
    if not (0 <= count <= MAX_PROMPTS and 0 <= seed <= MAX_SEED):
        raise ValueError(f"count must be 0 to {MAX_PROMPTS} and seed 0 to {MAX_SEED}, not {count} and {seed}")
    return list(islice(_exercises(skill, seed), count))


def check_answer(prompt: str, completion: str) -> bool:
    """Whether the answer line of a completion holds the prompt's result; raises `UnknownPromptError`."""
    for seed in range(MAX_SEED + 1):
        results = _results(seed)
        if prompt in results:
            return read_answer(completion) == results[prompt]
    raise UnknownPromptError(prompt)


def _exercises(skill: Skill, seed: int) -> Iterator[Exercise]:
    random = Random(f"prompts-{skill}-{seed}")
    draw = {"code": _draw_code, "reasoning": _draw_reasoning, "stories": _draw_story}[skill]
    while True:
        yield draw(random)


@cache
def _results(seed: int) -> dict[str, int | None]:
    return {exercise.prompt: exercise.result for exercise in islice(_exercises("reasoning", seed), MAX_PROMPTS)}


def _draw_reasoning(random: Random) -> Exercise:
    example = ""
    if random.random() < SOLVED_EXAMPLE_SHARE:
        first = draw_split_problem(random, held_out=True)
        example = f"{raw_prompt(first.question)} {first.solution}\n\n"
    problem = draw_split_problem(random, held_out=True)
    return Exercise(example + raw_prompt(problem.question), f" {problem.solution}\n", problem.result)


def _draw_code(random: Random) -> Exercise:
    while True:
        program = draw_from_side(random, draw_program, held_out=True)
        lines = program.splitlines(keepends=True)
        prompt = "".join(lines[: int(len(lines) * random.uniform(0.45, 0.6))])
        if len(prompt) in CODE_CHARACTERS:
            return Exercise(prompt, program[len(prompt) :])


def _draw_story(random: Random) -> Exercise:
    story = draw_from_side(random, draw_story, held_out=True)
    prompt = ". ".join(story.split(". ")[: random.randint(3, 4)]) + "."
    return Exercise(prompt, story[len(prompt) :])
