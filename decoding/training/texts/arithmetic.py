"""Owns the record of a word problem, the numbers it is made of, and the rule for checking an answer.

Does not know the story around the numbers (`word_problems.py`).
Invariant: every written step is computed here, so no equation in the corpus is false.
"""

import re
from dataclasses import dataclass
from random import Random

ANSWER_MARK = "#### "
_ANSWER_LINE = re.compile(r"^#### (-?\d+)\s*$", re.MULTILINE)


@dataclass(frozen=True)
class Problem:
    """A word problem: `key` names its family and numbers only, so names and objects cannot hide a repetition."""

    family: str
    numbers: tuple[int, ...]
    question: str
    steps: tuple[str, ...]
    result: int

    @property
    def key(self) -> str:
        """What decides the split: the same numbers in the same family are never on both sides."""
        return f"{self.family}:{','.join(map(str, self.numbers))}"

    @property
    def solution(self) -> str:
        """The steps in words and equations, then the answer line."""
        return f"{' '.join(self.steps)}\n{ANSWER_MARK}{self.result}"


def equation(left: int, operator: str, right: int) -> str:
    """One true equation, such as `12 + 7 = 19`; division must be exact."""
    return f"{left} {operator} {right} = {calculate(left, operator, right)}"


def draw_equation(random: Random) -> str:
    """A true equation of the sizes that word problems have, more often a sum or difference than a product."""
    operator = random.choice("+++----*/")
    if operator in "+-":
        small, large = sorted((random.randint(1, 99), random.randint(1, 160)))
        return (
            equation(large, operator, small)
            if operator == "-" or random.random() < 0.5
            else equation(small, "+", large)
        )
    left, right = random.randint(2, 12), random.randint(2, 12)
    return equation(left, "*", right) if operator == "*" else equation(left * right, "/", right)


def calculate(left: int, operator: str, right: int) -> int:
    """The value of one step."""
    if operator == "+":
        return left + right
    if operator == "-":
        return left - right
    if operator == "*":
        return left * right
    assert operator == "/", operator
    assert left % right == 0, (left, right)
    return left // right


def raw_prompt(question: str) -> str:
    """The plain form of a question, up to where the model answers (no trailing space: words carry their own)."""
    return f"Question: {question}\nAnswer:"


def guided_prompt(question: str) -> str:
    """The form that some benchmark harnesses use: it opens the answer, which then starts on a new line."""
    return f"Question: {question}\n\nAnswer: Let me solve step by step.\n"


def read_answer(completion: str) -> int | None:
    """The number on the first answer line of a completion, or None where there is none."""
    found = _ANSWER_LINE.search(completion)
    return int(found.group(1)) if found else None
