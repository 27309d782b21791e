"""Owns the short documented functions: signature, docstring with true examples, body.

Does not know larger programs (`programs.py`). Invariant: the examples in a docstring are what the body returns.
"""

from collections.abc import Callable
from random import Random

from decoding.training.texts.function_forms import OVER_LISTS, OVER_SCALARS, OVER_TEXTS
from decoding.training.texts.words import split_words

LISTS = split_words("numbers values items scores sizes amounts prices counts weights points")
TEXTS = split_words("text word name line sentence label phrase message")
SCALARS = split_words("n x number value limit size count total")


_SAMPLE_WORDS = split_words(
    "level banana river apple noon garden stone yellow radar tree window cheese civic letter bee"
)


def draw_function(random: Random) -> str:
    """One documented function, ending in a line break."""
    pool, names = random.choice([(OVER_LISTS, LISTS), (OVER_TEXTS, TEXTS), (OVER_SCALARS, SCALARS)])
    form, argument, constant = random.choice(pool), random.choice(names), random.randint(2, 9)
    fill = {"a": argument, "k": constant}
    name = form.name.format(**fill)
    body = ["    " + line for line in form.body.format(**fill).split("\n")]
    head = f"def {name}({argument}: {form.argument}) -> {form.result}:"
    function = _compile("\n".join([head, *body]), name)
    lines = [head, f'    """ {random.choice(form.summaries).format(**fill)}']
    for _ in range(random.randint(1, 3)):
        value = _draw_argument(random, form.argument)
        lines += [f"    >>> {name}({value!r})", f"    {function(value)!r}"]
    return "\n".join([*lines, '    """', *body]) + "\n"


def _compile(source: str, name: str) -> Callable[[object], object]:
    scope: dict[str, Callable[[object], object]] = {}
    exec(source, scope)  # our own form text, so that the docstring's examples are what the body returns
    return scope[name]


def _draw_argument(random: Random, kind: str) -> object:
    if kind == "int":
        return random.randint(1, 12)
    if kind == "str":
        return random.choice(_SAMPLE_WORDS)
    return [random.randint(-3, 20) for _ in range(random.randint(3, 5))]
