"""Programs that some tests drive and pip does not install."""

import os
import shutil

import pytest


def program(name: str, package: str) -> str:
    """Its path. Where it is missing the test is skipped with a sentence, in CI it fails: `.ci/run` installs it."""
    path = shutil.which(name)
    if path is None:
        sentence = f"{name} is not installed; Debian has it in the package {package}."
        pytest.fail(sentence) if os.environ.get("CI") == "true" else pytest.skip(sentence)
    return path
