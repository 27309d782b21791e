"""Refusing a field of `speculation` by its name, with what is accepted.

Knows no method: each checks its own fields with these words.
"""

from __future__ import annotations

from decoding.errors import RequestRejected


def one_of(*names: str) -> str:
    return f"one of {', '.join(names)}"


def check_field(name: str, is_valid: bool, expected: str, value: object) -> None:
    """Raise RequestRejected for `speculation.name` unless `is_valid`; expected: what may stand there."""
    if not is_valid:
        param = f"speculation.{name}"
        raise RequestRejected(f"{param} must be {expected}, got {value}", param=param)
