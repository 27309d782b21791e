"""Owns the forms of the short documented functions: name, types, summary, body.

Does not know how a form is filled. Invariant: no body fails on the drawn arguments.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class FunctionForm:
    """A function over one argument: `{a}` stands for the argument, `{k}` for a small constant."""

    name: str
    argument: str
    result: str
    summaries: tuple[str, ...]
    body: str


OVER_LISTS = (
    FunctionForm(
        "sum_above_{k}",
        "list[int]",
        "int",
        ("Return the sum of the {a} above {k}.",),
        "total = 0\nfor item in {a}:\n    if item > {k}:\n        total += item\nreturn total",
    ),
    FunctionForm(
        "count_above_{k}",
        "list[int]",
        "int",
        ("Count the {a} that are greater than {k}.",),
        "count = 0\nfor item in {a}:\n    if item > {k}:\n        count += 1\nreturn count",
    ),
    FunctionForm(
        "add_{k}_to_each",
        "list[int]",
        "list[int]",
        ("Return the {a} with {k} added to each.",),
        "return [item + {k} for item in {a}]",
    ),
    FunctionForm(
        "multiply_each_by_{k}",
        "list[int]",
        "list[int]",
        ("Multiply each of the {a} by {k}.",),
        "result = []\nfor item in {a}:\n    result.append(item * {k})\nreturn result",
    ),
    FunctionForm(
        "keep_multiples_of_{k}",
        "list[int]",
        "list[int]",
        ("Keep only the {a} that are divisible by {k}.",),
        "return [item for item in {a} if item % {k} == 0]",
    ),
    FunctionForm(
        "largest",
        "list[int]",
        "int",
        ("Return the largest of the {a}.", "Find the maximum of the {a}."),
        "best = {a}[0]\nfor item in {a}:\n    if item > best:\n        best = item\nreturn best",
    ),
    FunctionForm(
        "smallest",
        "list[int]",
        "int",
        ("Return the smallest of the {a}.", "Find the minimum of the {a}."),
        "best = {a}[0]\nfor item in {a}:\n    if item < best:\n        best = item\nreturn best",
    ),
    FunctionForm(
        "total",
        "list[int]",
        "int",
        ("Return the sum of all the {a}.", "Add up the {a}."),
        "total = 0\nfor item in {a}:\n    total += item\nreturn total",
    ),
    FunctionForm(
        "running_total",
        "list[int]",
        "list[int]",
        ("Return the sums of the {a} so far, one for each.",),
        "result = []\ntotal = 0\nfor item in {a}:\n    total += item\n    result.append(total)\nreturn result",
    ),
    FunctionForm("reverse_list", "list[int]", "list[int]", ("Return the {a} in reverse order.",), "return {a}[::-1]"),
    FunctionForm(
        "sort_down",
        "list[int]",
        "list[int]",
        ("Return the {a} sorted from large to small.",),
        "return sorted({a}, reverse=True)",
    ),
    FunctionForm(
        "without_repeats",
        "list[int]",
        "list[int]",
        ("Return the {a} without repeats, in the same order.",),
        "result = []\nfor item in {a}:\n    if item not in result:\n        result.append(item)\nreturn result",
    ),
    FunctionForm(
        "spread",
        "list[int]",
        "int",
        ("Return the largest minus the smallest of the {a}.",),
        "return max({a}) - min({a})",
    ),
    FunctionForm("first_{k}", "list[int]", "list[int]", ("Return the first {k} of the {a}.",), "return {a}[:{k}]"),
    FunctionForm(
        "every_{k}th",
        "list[int]",
        "list[int]",
        ("Return every {k}th of the {a}, from the first on.",),
        "return {a}[::{k}]",
    ),
    FunctionForm(
        "is_sorted",
        "list[int]",
        "bool",
        ("Check whether the {a} never go down.",),
        "for left, right in zip({a}, {a}[1:]):\n    if left > right:\n        return False\nreturn True",
    ),
    FunctionForm(
        "count_even",
        "list[int]",
        "int",
        ("Count the even {a}.",),
        "return sum(1 for item in {a} if item % 2 == 0)",
    ),
    FunctionForm(
        "split_by_sign",
        "list[int]",
        "tuple[list[int], list[int]]",
        ("Split the {a} into negative and other.",),
        "negative = [item for item in {a} if item < 0]\nother = [item for item in {a} if item >= 0]\n"
        "return negative, other",
    ),
    FunctionForm(
        "differences",
        "list[int]",
        "list[int]",
        ("Return the differences of neighbouring {a}.",),
        "return [right - left for left, right in zip({a}, {a}[1:])]",
    ),
)
OVER_TEXTS = (
    FunctionForm("reverse_{a}", "str", "str", ("Return the {a} backwards.",), "return {a}[::-1]"),
    FunctionForm(
        "count_vowels",
        "str",
        "int",
        ("Count the vowels in the {a}.",),
        'count = 0\nfor letter in {a}:\n    if letter in "aeiou":\n        count += 1\nreturn count',
    ),
    FunctionForm(
        "remove_vowels",
        "str",
        "str",
        ("Return the {a} without its vowels.",),
        'return "".join(letter for letter in {a} if letter not in "aeiou")',
    ),
    FunctionForm(
        "is_palindrome",
        "str",
        "bool",
        ("Check whether the {a} reads the same backwards.",),
        "return {a} == {a}[::-1]",
    ),
    FunctionForm("upper_{a}", "str", "str", ("Return the {a} in capital letters.",), "return {a}.upper()"),
    FunctionForm("repeat_{a}", "str", "str", ("Return the {a} {k} times in a row.",), "return {a} * {k}"),
    FunctionForm("length_of_{a}", "str", "int", ("Return how many letters the {a} has.",), "return len({a})"),
    FunctionForm(
        "letter_counts",
        "str",
        "dict[str, int]",
        ("Count how often each letter is in the {a}.",),
        "counts: dict[str, int] = {{}}\nfor letter in {a}:\n    counts[letter] = counts.get(letter, 0) + 1\n"
        "return counts",
    ),
    FunctionForm("first_{k}_letters", "str", "str", ("Return the first {k} letters of the {a}.",), "return {a}[:{k}]"),
    FunctionForm("count_letter", "str", "int", ("Count the letter e in the {a}.",), 'return {a}.count("e")'),
    FunctionForm(
        "starts_and_ends_alike",
        "str",
        "bool",
        ("Check whether the {a} starts and ends with the same letter.",),
        "return {a}[0] == {a}[-1]",
    ),
    FunctionForm(
        "spaced_{a}",
        "str",
        "str",
        ("Return the letters of the {a} with spaces between.",),
        'return " ".join({a})',
    ),
)
OVER_SCALARS = (
    FunctionForm("is_even", "int", "bool", ("Check whether {a} is even.",), "return {a} % 2 == 0"),
    FunctionForm(
        "factorial",
        "int",
        "int",
        ("Return the factorial of {a}.",),
        "result = 1\nfor factor in range(2, {a} + 1):\n    result *= factor\nreturn result",
    ),
    FunctionForm(
        "fibonacci",
        "int",
        "int",
        ("Return the Fibonacci number at index {a}.",),
        "first, second = 0, 1\nfor _ in range({a}):\n    first, second = second, first + second\nreturn first",
    ),
    FunctionForm(
        "is_prime",
        "int",
        "bool",
        ("Check whether {a} is a prime number.",),
        "if {a} < 2:\n    return False\nfor divisor in range(2, {a}):\n    if {a} % divisor == 0:\n"
        "        return False\nreturn True",
    ),
    FunctionForm(
        "divisors",
        "int",
        "list[int]",
        ("Return the divisors of {a} in order.",),
        "return [divisor for divisor in range(1, {a} + 1) if {a} % divisor == 0]",
    ),
    FunctionForm(
        "sum_to",
        "int",
        "int",
        ("Return the sum of the numbers from 1 to {a}.",),
        "return sum(range(1, {a} + 1))",
    ),
    FunctionForm(
        "multiples_of_{k}",
        "int",
        "list[int]",
        ("Return the first {a} multiples of {k}.",),
        "return [{k} * index for index in range(1, {a} + 1)]",
    ),
    FunctionForm(
        "digit_sum",
        "int",
        "int",
        ("Return the sum of the digits of {a}.",),
        "return sum(int(digit) for digit in str({a}))",
    ),
    FunctionForm("plus_{k}", "int", "int", ("Return {a} plus {k}.",), "return {a} + {k}"),
    FunctionForm("times_{k}", "int", "int", ("Return {a} times {k}.",), "return {a} * {k}"),
    FunctionForm(
        "at_most_{k}",
        "int",
        "int",
        ("Return {a}, but no more than {k}.",),
        "if {a} > {k}:\n    return {k}\nreturn {a}",
    ),
    FunctionForm("square", "int", "int", ("Return the square of {a}.",), "return {a} * {a}"),
    FunctionForm(
        "countdown",
        "int",
        "list[int]",
        ("Return the numbers from {a} down to 1.",),
        "return list(range({a}, 0, -1))",
    ),
)
