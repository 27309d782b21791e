"""A server that cannot serve says so in one sentence, at once, and ends with status 1."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.models import tiny
from tests.server.servers import make_model_folder

PATIENCE = 300.0  # seconds, on a machine that has other things to do
SERVE = "from server.cli import main; main()"


def truncated_weights(folder: Path) -> list[str]:
    tiny("llama", num_hidden_layers=1).save_pretrained(folder)
    weights = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(weights[:-100])
    return []


def pickled_weights(folder: Path) -> list[str]:
    tiny("llama", num_hidden_layers=1).save_pretrained(folder)
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x02cposix\nsystem\nX\x05\x00\x00\x00false\x85R.")
    return []


def a_billion_layers(folder: Path) -> list[str]:
    tiny("llama", num_hidden_layers=1).save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 10**9}))
    return []


def broken_template(folder: Path) -> list[str]:
    (folder / "chat_template.jinja").write_text("{% for message in messages %}{{ message.content")
    return []


def no_template_file(folder: Path) -> list[str]:
    return ["--chat-template", str(folder / "missing.jinja")]


def broken_tokenizer(folder: Path) -> list[str]:
    (folder / "tokenizer.json").write_text('{"version"')
    return []


def no_key_file(folder: Path) -> list[str]:
    return ["--api-key-file", str(folder / "missing")]


BROKEN: dict[Callable[[Path], list[str]], str] = {
    truncated_weights: r"model '.*' cannot be loaded: its weights cannot be read: .*",
    pickled_weights: r"model '.*' cannot be loaded: its weights cannot be read: they are pickled, .*",
    a_billion_layers: r"model '.*' cannot be loaded: config.json asks for more than \d+ tensors, .*",
    broken_template: r"the chat template of .* cannot be read: unexpected .*",
    no_template_file: r"the chat template of .* cannot be loaded: .*missing.jinja'",
    broken_tokenizer: r"the tokenizer of .* cannot be loaded: .*",
    no_key_file: r"the API key file .*missing cannot be read: .*",
}


QUICK = (truncated_weights, broken_template, broken_tokenizer, no_key_file)  # one for each part that reads a file


@pytest.mark.parametrize(
    "break_it",
    [pytest.param(each, marks=() if each in QUICK else pytest.mark.slow, id=each.__name__) for each in BROKEN],
)
def test_what_cannot_be_served_is_told_in_a_sentence(tmp_path: Path, break_it: Callable[[Path], list[str]]) -> None:
    folder = make_model_folder(tmp_path / "toy")
    arguments = ["serve", str(folder), "--port", "0", "--no-standby", "--device", "cpu", *break_it(folder)]
    ended = subprocess.run(
        [sys.executable, "-c", SERVE, *arguments],
        env=os.environ | {"HOME": "/proc/none", "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert ended.returncode == 1, ended.stderr
    stopped = [line for line in ended.stderr.splitlines() if line.startswith("Stopped: ")]
    assert len(stopped) == 1, ended.stderr
    assert re.fullmatch(BROKEN[break_it], stopped[0].removeprefix("Stopped: ")), stopped
    assert ended.stderr.count(stopped[0].removeprefix("Stopped: ")) == 1, ended.stderr
    assert "Traceback" not in ended.stderr
    assert "go on with the next" not in ended.stderr
