"""What `--pack` packs runs with torch, transformers, numba and what these need, and with nothing of the server's."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, distributions, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from decoding.model.checkpoint import BUNDLED_FOLDER
from decoding.training.heads.run import bundle
from decoding.training.heads.run.unpack import NEEDED
from decoding.training.heads.train_head import main
from tests.models import tiny

BLOCKER = """
import sys
from importlib.machinery import PathFinder

class Finder(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        found = super().find_spec(name, path, target)
        is_missing = name.partition(".")[0] in {blocked!r} and "stand_in" not in str(found and found.origin)
        return None if is_missing else found

sys.meta_path[sys.meta_path.index(PathFinder)] = Finder
"""


def installed_with(names: tuple[str, ...]) -> set[str]:
    """Distributions, without extras."""
    found: set[str] = set()
    queue = list(names)
    while queue:
        name = re.sub("[-_.]+", "-", queue.pop()).lower()
        try:
            needed = [] if name in found else [Requirement(line) for line in requires(name) or []]
        except PackageNotFoundError:
            needed = []
        found.add(name)
        queue += [each.name for each in needed if each.marker is None or each.marker.evaluate({"extra": ""})]
    return found


def other_modules(allowed: set[str]) -> set[str]:
    """Modules of all distributions but these."""
    names: set[str] = set()
    for each in distributions():
        if re.sub("[-_.]+", "-", each.metadata["Name"]).lower() not in allowed:
            tops = {path.parts[0].partition(".")[0] for path in each.files or [] if path.suffix in {".py", ".so"}}
            names |= {top for top in tops if top.isidentifier()}
    return names - {"decoding", "sitecustomize"}


@pytest.mark.slow  # a minute of a whole run
def test_a_packed_run_needs_nothing_but_what_it_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle, "PIECE_BYTES", 2**20)
    model, prompts, packed = tmp_path / "target", tmp_path / "prompts.txt", tmp_path / "packed"
    tiny("llama", vocab_size=2048).save_pretrained(model)
    for path in BUNDLED_FOLDER.glob("tokenizer*"):
        shutil.copy(path, model)
    prompts.write_text("".join(f"Tell me of {number} birds.\n" for number in range(5)))
    small = ["--held-out", "1", "--max-tokens", "16", "--max-len", "64", "--threads", "1", "--draft-vocabulary", "300"]
    asked = ["--pack", str(packed), "--model", str(model), "--data", str(prompts), "--objective", "eagle3", *small]
    assert main(asked) == 0
    pieces = sorted(packed.glob("piece-*"))
    assert len(pieces) > 1
    assert all(path.stat().st_size <= bundle.PIECE_BYTES for path in pieces)
    assert {line.partition(">=")[0] for line in (packed / "packages.txt").read_text().split()} == set(NEEDED)
    for path in (model, prompts):
        path.rename(path.with_name(f"{path.name}-gone"))
    blocked = other_modules(installed_with(NEEDED))
    assert {"msgspec", "fastapi", "llguidance", "zmq", "gguf"} <= blocked
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(BLOCKER.format(blocked=blocked))
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    run = [sys.executable, str(packed / "run.py"), "--steps", "1"]
    done = subprocess.run(run, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads((packed / "out" / "training.json").read_text())
    assert all(length >= 1 for length in told["acceptance_lengths"]["eagle3"]["tree"].values())
    assert Path(f"{packed}/unpacked/stand_in/msgspec.py").is_file()


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (("--model", "no/such/model"), "model 'no/such/model' is no folder and cannot be had from the hub"),
        (("--data", "nowhere.jsonl"), "data 'nowhere.jsonl' is neither 'generate', a file of prompts nor a folder"),
        (("--start", "no/such/head"), "the head 'no/such/head' is no folder and cannot be had from the hub"),
    ],
)
def test_what_cannot_be_packed_is_refused_in_a_sentence(
    asked: tuple[str, str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--pack", str(tmp_path / "packed"), *asked]) == 2
    assert told in capsys.readouterr().err
    assert not (tmp_path / "packed").exists()
