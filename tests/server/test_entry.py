"""The command's start with packages that are older than those that pyproject.toml asks for."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from server.entry import PACKAGE, refusal_of, requirements_of, version_of

ROOT = Path(__file__).parents[2]
NEEDED = [Requirement("torch>=2.11"), Requirement("transformers>=5.19"), Requirement("ray[serve]<2.61,>=2.60")]
FITTING = {"torch": "2.13.0+cpu", "transformers": "5.19.0", "ray": "2.60.0"}


@pytest.mark.parametrize(
    "others", [{}, {"torch": "2.11.0a0+abc.nv26"}, {"transformers": "5.24.0.dev0"}, {"ray": "2.60.5"}]
)
def test_what_fits_is_not_refused(others: dict[str, str]) -> None:
    assert refusal_of(NEEDED, (FITTING | others).get) is None


def test_a_refusal_names_each_that_is_old_and_the_command_for_all() -> None:
    refusal = refusal_of(NEEDED, {"transformers": "5.18.0", "ray": "2.61.0"}.get)
    assert refusal is not None
    sentence, command = refusal.split(": ")
    assert "transformers>=5.19 (5.18.0 is installed)" in sentence
    assert "torch>=2.11 (none is installed)" in sentence
    assert "ray<2.61,>=2.60 (2.61.0 is installed)" in sentence
    _, *words = shlex.split(command)
    assert words == ["-m", "pip", "install", "-U", "torch>=2.11", "transformers>=5.19", "ray<2.61,>=2.60"]


def test_extras_are_not_asked_for_and_all_else_is_and_fits_here() -> None:
    needed = requirements_of(PACKAGE)
    names = {each.name for each in needed}
    assert {"torch", "transformers", "fastapi"} <= names
    assert not names & {"pytest", "ray", "accelerate"}
    assert refusal_of(needed, version_of) is None
    assert requirements_of("a-package-that-nobody-has") == []


def test_an_old_package_is_told_before_anything_is_imported(tmp_path: Path) -> None:
    """The folder comes first: its metadata are found before the true ones, and its typer ends whoever imports it."""
    metadata = tmp_path / "transformers-4.57.0.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text("Metadata-Version: 2.4\nName: transformers\nVersion: 4.57.0\n")
    (tmp_path / "typer.py").write_text("raise SystemExit('typer was imported')\n")
    ran = subprocess.run(
        [sys.executable, "-c", "from server.entry import main; main()", "serve"],
        env=os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ran.returncode == 1, ran.stderr
    (line,) = ran.stderr.splitlines()
    (needed,) = (str(each) for each in requirements_of(PACKAGE) if each.name == "transformers")
    assert line.startswith(f"Stopped: Gander needs {needed} (4.57.0 is installed); "), line
    assert shlex.split(line)[-1] == needed
