"""The manual page and shells' completion know every command and flag."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from server.cli import app
from server.config import ServerSettings
from server.settings.file import key_of


def page() -> str:
    result = CliRunner().invoke(app, ["man"])
    assert result.exit_code == 0
    return result.output


def test_the_page_has_every_command_and_flag() -> None:
    text = page().replace(r"\-", "-")
    for command in ("serve MODEL", "config MODEL", "pull NAME", "list", "rm NAME", "man", "connect TOOL"):
        assert f"\n.SS gander {command}\n" in text
    for name, field in ServerSettings.model_fields.items():
        assert name == "model" or f"--{key_of(name)}" in text
        assert (field.description or "").split("-")[0] in text
    assert text.startswith('.TH GANDER 1 "" "gander ')
    assert "~/.config/gander/gander.toml" in text


@pytest.mark.skipif(shutil.which("groff") is None, reason="needs groff")
def test_groff_reads_the_page_without_a_warning(tmp_path: Path) -> None:
    (tmp_path / "gander.1").write_text(page())
    command = ["groff", "-man", "-Tutf8", "-ww", str(tmp_path / "gander.1")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert ended.stderr == ""
    assert "--max-running" in ended.stdout


@pytest.mark.parametrize(("words", "found"), [("gander pu", "pull"), ("gander serve --max-runn", "--max-running")])
def test_a_shell_completes_commands_and_flags(words: str, found: str) -> None:
    variables = {"_GANDER_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    command = [sys.executable, "-c", "import sys; sys.argv = ['gander']; from server.cli import main; main()"]
    ended = subprocess.run(command, env=os.environ | variables, capture_output=True, text=True, timeout=120, check=True)
    assert ended.stdout.split() == [found]
