"""What the options of benchmarks are read as: lists apart by commas, numbers that are positive."""

from __future__ import annotations

import argparse


def names(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def floats(text: str) -> tuple[float, ...]:
    return tuple(map(float, names(text)))


def numbers(text: str) -> tuple[int, ...]:
    """Positive ones."""
    return tuple(map(positive, names(text)))


def positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is less than 1")
    return number


def refuse_unknown(parser: argparse.ArgumentParser, what: str, given: tuple[str, ...], known: tuple[str, ...]) -> None:
    """End the process with a sentence where one of `given` is not known."""
    if unknown := sorted(set(given).difference(known)):
        parser.error(f"there is no {what} {', '.join(unknown)}; there are {', '.join(known)}")
