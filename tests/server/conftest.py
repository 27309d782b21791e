"""One server in front of the scripted worker, and one in front of the real one, for all tests that leave them running;
and clients written for Node."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from server.config import ServerSettings
from server.engine_client.processes.worker_process import WORKER_COMMAND
from tests.server.servers import RunningServer, make_model_folder, running_server

NODE_FOLDER = Path(__file__).parent / "node"


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = make_model_folder(tmp_path_factory.mktemp("models") / "toy")
    settings = ServerSettings(
        model=str(folder), drain_seconds=5, keep_alive_seconds=0.2, max_nodes=60, unknown_fields="error"
    )
    with running_server(settings) as running:
        yield running


@pytest.fixture(scope="session")
def real() -> Iterator[RunningServer]:
    """The bundled model. Tests compare its counters before and after, and name sessions and prompts of their own."""
    with running_server(ServerSettings(drain_seconds=2), WORKER_COMMAND) as running:
        yield running


@pytest.fixture(scope="session")
def node_modules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the Node clients installed as tests/server/node/package.json pins it."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("node and npm are not installed")
    folder = tmp_path_factory.mktemp("node")
    for file in filter(Path.is_file, NODE_FOLDER.iterdir()):
        shutil.copy(file, folder / file.name)
    command = ["npm", "install", "--no-audit", "--no-fund", "--silent"]
    try:
        installed = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=180, check=False)
    except subprocess.TimeoutExpired:
        pytest.skip("npm could not reach a registry in time")
    if installed.returncode:
        pytest.skip(f"npm cannot install the clients here: {installed.stderr.strip()[-200:]}")
    return folder
