"""An amount of memory as people write it."""

from __future__ import annotations

import math
import re

from pydantic_core import PydanticCustomError

BYTES = {"": 1, "b": 1} | {
    letter + mark: base**power
    for power, letter in enumerate("kmgt", start=1)
    for mark, base in (("b", 1000), ("ib", 1024))
}
SMALLEST_CACHE = 2**20  # bytes; a smaller number is a mistake, such as 8 for 8GiB


def amount_of(text: str) -> float:
    """Read an amount of memory: a share of what is free (0.5), or bytes with or without a unit (8GiB, 8000000000).

    A number up to 1 without a unit is a share, and is returned as it is. Raises PydanticCustomError for anything else,
    and for less than a mebibyte.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?|\.\d+)\s*([a-z]*)", text.strip().lower(), re.ASCII)
    number, unit = match.groups() if match is not None else ("0", "")
    amount = float(number) * BYTES.get(unit, 0)
    is_share = unit == "" and 0 < amount <= 1
    if not is_share and not SMALLEST_CACHE <= amount < math.inf:
        wrong = f"'{text}' is neither a share of the free memory, such as 0.5, nor bytes from 1MiB on, such as 8GiB."
        raise PydanticCustomError("memory", "{text}", {"text": wrong})
    return amount
