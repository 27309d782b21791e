"""`python -m tests.oldest` prints the oldest versions that pyproject.toml allows, as constraints for pip.

Runs before anything is installed, by the standard library alone.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from pathlib import Path

PROJECT = Path(__file__).parent.parent / "pyproject.toml"


def oldest(requirements: Iterable[str]) -> list[str]:
    """`name==version` with the lower bound of each requirement that has one."""
    bounds = (re.match(r"([\w.-]+)>=([\w.]+)", each) for each in requirements)
    return [f"{bound[1]}=={bound[2]}" for bound in bounds if bound]


if __name__ == "__main__":
    project = tomllib.loads(PROJECT.read_text())["project"]
    print(*oldest([*project["dependencies"], *project["optional-dependencies"]["dev"]]), sep="\n")  # noqa: T201
