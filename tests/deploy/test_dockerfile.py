"""The Dockerfile's promises that can be checked without building it; `make check` lints it."""

import ast
import importlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from server.config import ServerSettings
from tests.server.servers import make_model_folder, running_server

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "Dockerfile").read_text()
LAST_STAGE = TEXT[TEXT.rindex("\nFROM ") :]


def health_of(url: str) -> int:
    """The exit status of the image's health check for a server at `url`."""
    found = re.search(r"HEALTHCHECK .*\\\n\s+CMD (\[.*\])", LAST_STAGE)
    assert found, LAST_STAGE
    name, *arguments = json.loads(found[1])
    assert name == "python"
    port = url.rsplit(":", 1)[1]
    environment = os.environ | {"GANDER_PORT": port, "http_proxy": "http://127.0.0.1:1"}
    return subprocess.run([sys.executable, *arguments], env=environment, check=False, timeout=30).returncode


def test_the_health_check_is_green_when_a_completion_would_be_served(tmp_path: Path) -> None:
    settings = ServerSettings(model=str(make_model_folder(tmp_path / "toy")))
    with running_server(settings) as server:
        assert health_of(server.url) == 0


def test_the_health_check_is_red_while_the_model_loads_and_when_nobody_listens(tmp_path: Path) -> None:
    settings = ServerSettings(model=str(make_model_folder(tmp_path / "toy", load_seconds=60)))
    with running_server(settings, state="loading") as server:
        assert health_of(server.url) != 0
    assert health_of(server.url) != 0


def test_the_server_runs_as_a_numbered_user_that_is_not_root() -> None:
    users = re.findall(r"^USER (.*)$", LAST_STAGE, re.MULTILINE)
    assert users == ["10001:10001"]
    assert LAST_STAGE.index("USER") < LAST_STAGE.index("ENTRYPOINT")


def test_pip_keeps_no_cache_and_heeds_the_constraints() -> None:
    installs = re.findall(r"pip --python /opt/gander install (.*)", TEXT)
    assert len(installs) == 3
    assert all("--no-cache-dir" in install for install in installs)
    assert all("--no-deps" in install or "--constraint constraints.txt" in install for install in installs)
    assert "pip" not in LAST_STAGE


def test_the_image_for_gpus_reads_weights_straight_to_them() -> None:
    found = re.search(r'-c "(import sys, tomllib.*?)" "\$\{DEVICE\}"', TEXT, re.DOTALL)
    assert found
    program = found[1].replace("\\\n", "")
    for device, is_wanted in (("cuda", True), ("cpu", False)):
        command = [sys.executable, "-c", program, device]
        required = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()
        assert any(line.startswith("accelerate") for line in required) == is_wanted
        assert any(line.startswith("fastapi") for line in required)


def test_what_the_build_runs_of_ours_is_there() -> None:
    for program in re.findall(r'python -c "(from decoding.*?)"', TEXT, re.DOTALL):
        names: dict[str, object] = {}
        for node in ast.walk(ast.parse(program.replace("\\\n", ""))):
            if isinstance(node, ast.ImportFrom) and node.module:
                names |= {each.name: getattr(importlib.import_module(node.module), each.name) for each in node.names}
            elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                assert hasattr(names[node.value.id], node.attr), (node.value.id, node.attr)
        assert names


def test_the_image_for_gpus_has_the_compiler_that_triton_needs_and_tries_it() -> None:
    pytest.importorskip("triton", reason="Triton is not installed")
    assert re.search(r'test "\$\{DEVICE\}" = cpu \|\| .*apt-get install .* gcc libc6-dev', LAST_STAGE, re.DOTALL)
    found = re.search(r"python -m (decoding\.kernels\.\S+)", LAST_STAGE)
    assert found
    assert "TRITON_CACHE_DIR=/cache/triton" in LAST_STAGE


@pytest.mark.parametrize("has_compiler", [True, False])
def test_trying_the_compiler_fails_where_there_is_none(tmp_path: Path, has_compiler: bool) -> None:
    pytest.importorskip("triton", reason="Triton is not installed")
    if has_compiler and shutil.which("gcc") is None:
        pytest.skip("there is no gcc here")
    (tmp_path / "bin").mkdir()
    paths = os.environ["PATH"] if has_compiler else str(tmp_path / "bin")
    environment = os.environ | {"PATH": paths, "TRITON_CACHE_DIR": str(tmp_path)}
    environment.pop("CC", None)
    command = [sys.executable, "-m", "decoding.kernels.gpu.toolchain"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, "needs a C compiler" in done.stderr) == ((0, False) if has_compiler else (1, True))
