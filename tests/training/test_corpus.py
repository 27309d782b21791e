"""The corpus: one seed, one text; the two sides of the split share nothing."""

import ast
from itertools import islice, pairwise
from random import Random

import pytest

from decoding.training.texts.arithmetic import read_answer
from decoding.training.texts.corpus import SKILLS, Skill, draw_split_problem, generate_documents
from decoding.training.texts.functions import draw_function
from decoding.training.texts.programs import PROGRAMS
from decoding.training.texts.prompts import UnknownPromptError, check_answer, held_out_exercises, held_out_prompts
from decoding.training.texts.split import is_held_out
from decoding.training.texts.word_problems import FAMILIES


@pytest.mark.parametrize("skill", SKILLS)
def test_a_seed_gives_the_same_documents_each_time(skill: Skill) -> None:
    first, second = (list(islice(generate_documents(skill, 3, held_out=False), 40)) for _ in range(2))
    assert first == second
    assert first != list(islice(generate_documents(skill, 4, held_out=False), 40))


def test_no_problem_is_on_both_sides_of_the_split() -> None:
    random = Random(1)
    trained = {draw_split_problem(random, held_out=False).key for _ in range(3000)}
    held_out = {draw_split_problem(random, held_out=True).key for _ in range(200)}
    assert trained.isdisjoint(held_out)
    assert all(map(is_held_out, held_out))


@pytest.mark.parametrize("skill", ["code", "stories"])
def test_every_prompt_comes_from_a_held_out_text(skill: Skill) -> None:
    exercises = held_out_exercises(skill, 30)
    assert all(is_held_out(exercise.prompt + exercise.reference) for exercise in exercises)
    trained = "\n".join(document.text for document in islice(generate_documents(skill, 0, held_out=False), 500))
    assert not any(exercise.prompt + exercise.reference in trained for exercise in exercises)


@pytest.mark.parametrize("skill", SKILLS)
def test_more_prompts_begin_with_the_same_prompts(skill: Skill) -> None:
    assert held_out_prompts(skill, 12)[:5] == held_out_prompts(skill, 5)
    assert held_out_prompts(skill, 5, seed=1) != held_out_prompts(skill, 5)


def test_every_equation_of_every_family_is_true() -> None:
    random = Random(2)
    for family in FAMILIES:
        for problem in (family(random) for _ in range(50)):
            equations = [step.rsplit(": ", 1)[-1].rstrip(".") for step in problem.steps if "=" in step]
            assert equations
            for left, right in (equation.split(" = ") for equation in equations):
                assert eval(left) == int(right), problem  # our own text
            assert int(equations[-1].split(" = ")[1]) == problem.result


def test_the_answer_line_decides_whether_a_word_problem_is_right() -> None:
    exercise = held_out_exercises("reasoning", 8)[7]
    assert check_answer(exercise.prompt, exercise.reference)
    assert not check_answer(exercise.prompt, f" So it is.\n#### {(exercise.result or 0) + 1}")
    assert not check_answer(exercise.prompt, f" It is {exercise.result}.")
    with pytest.raises(UnknownPromptError):
        check_answer("Question: What is this?\nAnswer:", exercise.reference)
    assert read_answer("a\n#### -3\n#### 4") == -3


def test_every_program_parses_and_every_docstring_example_holds() -> None:
    random = Random(5)
    for form in PROGRAMS:
        for _ in range(10):
            ast.parse(form(random))
    for _ in range(100):
        source = draw_function(random)
        scope: dict[str, object] = {}
        exec(source, scope)  # our own text
        lines = [line.strip() for line in source.splitlines()]
        for call, value in pairwise(lines):
            if call.startswith(">>> "):
                assert eval(call[4:], scope) == eval(value), source
