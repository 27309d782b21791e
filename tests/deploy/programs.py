"""Programs that are not Python packages: found on the path, asked for in CI, skipped elsewhere."""

from __future__ import annotations

import os
import shutil

import pytest


def program(name: str) -> str:
    """The path of a program of Debian's package `prometheus`."""
    path = shutil.which(name)
    if path is None:
        sentence = f"{name} is missing; Debian's package `prometheus` brings it"
        if os.environ.get("CI") == "true":
            pytest.fail(sentence)
        pytest.skip(sentence)
    return path
