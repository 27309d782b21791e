"""Owns the documents of the corpus: their skill, their side of the split, and which of their text the loss counts.

Does not know tokens. Invariant: every part of a document is from the requested side of the split.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Literal

from decoding.training.texts.arithmetic import Problem, draw_equation, guided_prompt, raw_prompt
from decoding.training.texts.chat import Turn, draw_chat
from decoding.training.texts.functions import draw_function
from decoding.training.texts.programs import draw_program
from decoding.training.texts.sources import library_pieces
from decoding.training.texts.split import draw_from_side, is_held_out
from decoding.training.texts.stories import draw_story
from decoding.training.texts.word_problems import draw_problem

Skill = Literal["code", "reasoning", "stories"]
Source = Literal["code", "reasoning", "stories", "drills"]
SKILLS: tuple[Skill, ...] = ("code", "reasoning", "stories")

END_OF_TEXT, USER, ASSISTANT, END_OF_TURN = "<|endoftext|>", "<|user|>", "<|assistant|>", "<|end|>"
SPECIAL_TOKENS = (END_OF_TEXT, USER, ASSISTANT, END_OF_TURN)


@dataclass(frozen=True)
class Segment:
    """A run of text; the loss counts only where `is_learned`."""

    text: str
    is_learned: bool


@dataclass(frozen=True)
class Document:
    """One text of one source, before tokenisation and without an end-of-text token."""

    source: Source
    segments: tuple[Segment, ...]

    @property
    def text(self) -> str:
        """The whole text."""
        return "".join(segment.text for segment in self.segments)


def generate_documents(source: Source, seed: int, held_out: bool) -> Iterator[Document]:
    """An endless stream of one source's documents from one side of the split. Drills belong to no side."""
    random = Random(f"{source}-{seed}-{held_out}")
    draw = {"code": _draw_code, "reasoning": _draw_reasoning, "stories": _draw_stories, "drills": _draw_drill}[source]
    while True:
        yield draw(random, held_out)


def chat_segments(turns: list[Turn]) -> tuple[Segment, ...]:
    """The turns with their markers. Only the assistant's text and its end of turn are learned."""
    segments = []
    for asked, answer in turns:
        segments.append(Segment(f"{USER}{asked}{END_OF_TURN}{ASSISTANT}", is_learned=False))
        segments.append(Segment(f"{answer}{END_OF_TURN}", is_learned=True))
    return tuple(segments)


def draw_split_problem(random: Random, held_out: bool) -> Problem:
    """One word problem from one side of the split."""
    while is_held_out((problem := draw_problem(random)).key) != held_out:
        pass
    return problem


def _draw_reasoning(random: Random, held_out: bool) -> Document:
    problem = draw_split_problem(random, held_out)
    form = random.random()
    if form < 0.25:
        return Document("reasoning", chat_segments([(problem.question, problem.solution)]))
    if form < 0.35:
        asked, answer = guided_prompt(problem.question), f"{problem.solution}\n"
    else:
        asked, answer = raw_prompt(problem.question), f" {problem.solution}\n"
    if random.random() < 0.15:
        first = draw_split_problem(random, held_out)
        asked = f"{raw_prompt(first.question)} {first.solution}\n\n{asked}"
    return Document("reasoning", (Segment(asked, is_learned=False), Segment(answer, is_learned=True)))


def _draw_stories(random: Random, held_out: bool) -> Document:
    if random.random() < 0.5:
        return Document("stories", (Segment(draw_from_side(random, draw_story, held_out), is_learned=True),))
    return Document("stories", chat_segments(draw_chat(random, held_out)))


def _draw_code(random: Random, held_out: bool) -> Document:
    chance = random.random()
    if chance < 0.2:
        parts = [draw_from_side(random, _draw_library_piece, held_out)]
    elif chance < 0.5:
        parts = [draw_from_side(random, draw_function, held_out) for _ in range(random.randint(1, 4))]
    else:
        count = random.choices([1, 2, 3], [60, 25, 15])[0]
        parts = [draw_from_side(random, draw_program, held_out) for _ in range(count)]
    return Document("code", (Segment("\n\n".join(parts), is_learned=True),))


def _draw_drill(random: Random, held_out: bool) -> Document:  # noqa: ARG001 (an equation alone is no problem)
    segments: list[Segment] = []
    for _ in range(random.randint(6, 16)):
        asked, answer = draw_equation(random).split(" =")
        segments += [Segment(f"{asked} =", is_learned=False), Segment(f"{answer}.\n", is_learned=True)]
    return Document("drills", tuple(segments))


def _draw_library_piece(random: Random) -> str:
    return random.choice(_library())


@cache
def _library() -> tuple[str, ...]:
    return tuple(library_pieces())
