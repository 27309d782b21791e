"""One server in front of the scripted worker for all tests that leave it running."""

from collections.abc import Iterator

import pytest

from server.config import ServerSettings
from tests.server.servers import RunningServer, make_model_folder, running_server


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = make_model_folder(tmp_path_factory.mktemp("models") / "toy")
    settings = ServerSettings(
        model=str(folder), drain_seconds=5, keep_alive_seconds=0.2, max_nodes=60, unknown_fields="error"
    )
    with running_server(settings) as running:
        yield running
