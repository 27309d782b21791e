"""The wheel carries everything, and serves from an empty folder as `pipx run` would have it do."""

from __future__ import annotations

import json
import os
import re
import shutil
import site
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

import httpx
import pytest
from packaging.requirements import Requirement

from tests.kernels import lend_kernels
from tests.server.servers import PATIENCE, wait_until

ROOT = Path(__file__).parents[2]
PACKAGES = ("decoding", "server")
SOURCES = ("pyproject.toml", "README.md", "LICENSE", "docs", "deploy", *PACKAGES)


def run(*command: str | Path, **options: Any) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, which has no leftovers of earlier builds, without a network."""
    folder = tmp_path_factory.mktemp("wheel")
    (folder / "source").mkdir()
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / "source" / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, folder / "source" / name)
    options = ("--quiet", "--no-index", "--no-deps", "--no-build-isolation", "--wheel-dir", folder)
    run(sys.executable, "-m", "pip", "wheel", *options, folder / "source")
    (built,) = folder.glob("gander-*.whl")
    return built


def test_a_torch_that_is_there_is_kept(wheel: Path) -> None:
    """So that a machine without a GPU keeps its CPU build: see the README."""
    options = ("--dry-run", "--quiet", "--no-index", "--ignore-installed", "--no-deps", "--report", "-")
    report = json.loads(run(sys.executable, "-m", "pip", "install", *options, wheel))
    (ours,) = report["install"]
    wanted = next(Requirement(each) for each in ours["metadata"]["requires_dist"] if each.startswith("torch"))
    assert wanted.specifier.contains(metadata.version("torch")), "else pip would replace it"
    assert wanted.url is None


@pytest.fixture(scope="module")
def home(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh environment with the wheel, whose other packages are those of this one."""
    folder = tmp_path_factory.mktemp("environment")
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    run(sys.executable, "-m", "pip", "--python", folder, "install", "--quiet", "--no-index", "--no-deps", wheel)
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "others.pth").write_text("\n".join(site.getsitepackages()))
    lend_kernels(packages / "decoding", folder / "kernels")
    return folder


def environment(home: Path) -> dict[str, str]:
    """This process's, without what would lead back to the checkout."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH" and name[:7] != "GANDER_"}
    return kept | {"NUMBA_CACHE_DIR": str(home / "kernels")}


def files_below(folder: Path) -> set[str]:
    return {
        path.relative_to(ROOT).as_posix()
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_every_file_of_the_packages_is_in_the_wheel(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    expected = files_below(ROOT / "decoding") | files_below(ROOT / "server")
    assert {"decoding/gosling/model.safetensors", "decoding/drafting/stand/trees/general.json"} <= expected
    assert not expected - names
    assert not {name for name in names if name.startswith(("tests/", "deploy/", "docs/"))}


def test_configurations_dashboards_and_their_docs_are_in_the_wheel(wheel: Path) -> None:
    start = re.compile(r"gander-[^/]+\.data/data/share/gander/")
    names = {start.sub("", name) for name in zipfile.ZipFile(wheel).namelist() if start.match(name)}
    docs = {name for name in files_below(ROOT / "docs") if not name.endswith(".json")}
    deploy = set().union(*(files_below(ROOT / "deploy" / each) for each in ("prometheus", "grafana", "systemd")))
    deploy = {name.removeprefix("deploy/") for name in deploy if not name.endswith(".py")}
    assert "docs/deployment.md" in docs
    assert names == docs | deploy | {"gander.toml"}


@contextmanager
def served(home: Path, folder: Path) -> Iterator[str]:
    """`gander serve` of the environment from `folder`, ready; its address."""
    output = folder.with_suffix(".output")
    command = [home / "bin" / "gander", "serve", "--port", "0"]
    with output.open("w") as file:
        process = subprocess.Popen(command, cwd=folder, env=environment(home), stderr=file)
    try:
        found = wait_until(lambda: re.search(r"(http://127\.0\.0\.1:\d+)/ready", output.read_text()), 60)
        wait_until(lambda: process.poll() is not None or httpx.get(found[0], timeout=PATIENCE).status_code == 200, 400)
        assert process.poll() is None, output.read_text()
        yield found[1]
        process.terminate()
        assert process.wait(PATIENCE) == 0, output.read_text()
    finally:
        process.kill()
        process.wait(PATIENCE)


@pytest.mark.slow
def test_the_installed_wheel_serves_from_an_empty_folder(home: Path, tmp_path: Path) -> None:
    folder = tmp_path / "empty"
    folder.mkdir()
    code = "import decoding, server; print(decoding.__file__, server.__file__)"
    for path in run(home / "bin" / "python", "-c", code, cwd=folder, env=environment(home)).split():
        assert Path(path).is_relative_to(home), path
    assert run(home / "bin" / "gander", "version", cwd=folder, env=environment(home)).startswith("gander ")
    with served(home, folder) as url:
        body = {"prompt": "def fibonacci(n):\n", "max_tokens": 20, "temperature": 0}
        reply = httpx.post(f"{url}/v1/completions", json=body, timeout=60).json()
        assert reply["usage"]["completion_tokens"] > 0
        assert reply["choices"][0]["text"].strip()
        assert "gander_" in httpx.get(f"{url}/metrics", timeout=PATIENCE).text
    assert not list(folder.iterdir())
