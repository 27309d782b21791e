"""A Ray Serve cluster on this machine alone, for measurements and tests. It ends with the block.

Knows configurations and replicas, nothing of what they answer. Needs the extra `ray`.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import ray
from ray.dashboard.modules.serve.sdk import ServeSubmissionClient

from server.ray.config_file import GANDER

ADDRESS = "127.0.0.2"  # because Ray replaces 127.0.0.1 by the machine's address in its network
NUM_CPUS = 8  # what replicas may reserve, however many CPUs there are
OBJECT_BYTES = 100_000_000
START_SECONDS = 600.0  # long, because the first start on a machine compiles kernels
LOOK_SECONDS = 0.5
SETTINGS = {"model": "gosling", "threads": 1, "standby": False}  # for replicas that share a small machine


class LocalRay:
    """A running cluster. dashboard: the address to which `serve deploy` sends configurations."""

    def __init__(self, dashboard: str) -> None:
        self._client = ServeSubmissionClient(dashboard)
        self.url = f"http://127.0.0.1:{_free_port()}"

    def deploy(self, config: Mapping[str, Any]) -> None:
        """Deploy a configuration as `serve deploy` does, on this cluster's port; return once all replicas are running.
        Raises TimeoutError if they do not come to run."""
        host, port = self.url.removeprefix("http://").split(":")
        self._client.deploy_applications(dict(config) | {"http_options": {"host": host, "port": int(port)}})
        end = time.monotonic() + START_SECONDS
        time.sleep(LOOK_SECONDS)  # the controller needs a moment to begin
        while not self._is_as_deployed():
            if time.monotonic() > end:
                raise TimeoutError(f"Ray Serve has not deployed: {self._client.get_serve_details()}")
            time.sleep(LOOK_SECONDS)

    def replica_pids(self) -> list[int]:
        """Process ids of the running replicas."""
        replicas = self._application()["deployments"][GANDER]["replicas"]
        return [each["pid"] for each in replicas if each["state"] == "RUNNING"]

    def _is_as_deployed(self) -> bool:
        return bool(self._application()["status"] == "RUNNING")

    def _application(self) -> dict[str, Any]:
        """The application's status and its deployments, as Ray reports them."""
        (application,) = self._client.get_serve_details()["applications"].values()
        assert isinstance(application, dict)
        return application


@contextmanager
def local_ray() -> Iterator[LocalRay]:
    context = ray.init(
        "local",
        num_cpus=NUM_CPUS,
        object_store_memory=OBJECT_BYTES,
        include_dashboard=True,
        dashboard_port=_free_port(),
        log_to_driver=False,
        _node_ip_address=ADDRESS,
        _system_config={"worker_niceness": 0},  # Ray's own is 15
    )
    try:
        yield LocalRay(f"http://{context.dashboard_url}")
    finally:
        ray.shutdown()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
        return port
