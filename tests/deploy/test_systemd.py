"""The units, by systemd's own check; and a server that is started as systemd starts it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from server.engine_client.status import EngineStatus
from server.process.service_manager import ServiceManager, passed_socket
from tests.programs import program
from tests.server.servers import FAKE_WORKER, PATIENCE, make_model_folder

UNITS = Path("deploy/systemd")
# As systemd's child does before it becomes the server: arguments are the socket's descriptor, model, worker's command.
SERVE = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.environ |= {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "1"}
from server.config import ServerSettings
from server.process.runner import run
sys.exit(run(ServerSettings(model=sys.argv[2], drain_delay=0, standby=False), command=sys.argv[3:]))
"""


def test_systemd_finds_nothing_wrong_with_the_units(tmp_path: Path) -> None:
    command = program("systemd-analyze", "systemd")
    for unit in UNITS.iterdir():
        text = unit.read_text().replace("/opt/gander/bin/gander", sys.executable)  # which has to exist
        (tmp_path / unit.name).write_text(text)
    units = sorted(map(str, tmp_path.iterdir()))
    done = subprocess.run([command, "verify", *units], capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_service_takes_the_port_that_it_is_given_and_says_how_far_it_is(tmp_path: Path) -> None:
    folder, address = make_model_folder(tmp_path / "toy"), str(tmp_path / "notify")
    with (
        socket.create_server(("127.0.0.1", 0)) as port,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager,
    ):
        manager.bind(address)
        manager.settimeout(PATIENCE)
        command = [sys.executable, "-c", SERVE, str(port.fileno()), str(folder), *FAKE_WORKER]
        environment = os.environ | {"NOTIFY_SOCKET": address}
        with subprocess.Popen(command, env=environment, pass_fds=[port.fileno()], stderr=subprocess.DEVNULL) as server:
            try:
                told = [manager.recv(4096).decode()]
                while not told[-1].startswith("READY=1"):
                    told.append(manager.recv(4096).decode())
                url = f"http://127.0.0.1:{port.getsockname()[1]}"
                assert httpx.get(f"{url}/ready", timeout=PATIENCE).status_code == 200
                server.send_signal(signal.SIGTERM)
                while not told[-1].startswith("STOPPING=1"):
                    told.append(manager.recv(4096).decode())
                assert server.wait(PATIENCE) == 0
            finally:
                server.kill()
        assert all("STATUS=" in each for each in told)
        socket.create_connection(port.getsockname()).close()  # it is open still, for the next one


@pytest.mark.parametrize(
    "environment",
    [{}, {"LISTEN_PID": "1", "LISTEN_FDS": "1", "LISTEN_FDNAMES": "gander.socket"}, {"LISTEN_PID": str(os.getpid())}],
)
def test_a_socket_that_was_passed_to_nobody_or_another_is_not_taken(environment: dict[str, str]) -> None:
    assert passed_socket(environment) is None
    assert environment == {}


def test_two_sockets_are_one_too_many() -> None:
    with pytest.raises(OSError, match="2 sockets were passed"):
        passed_socket({"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "2"})


def test_a_manager_that_is_gone_is_no_error(tmp_path: Path) -> None:
    environment = {"NOTIFY_SOCKET": str(tmp_path / "missing")}
    ServiceManager(environment).show(EngineStatus())
    assert environment == {}
