"""Ray Serve on this machine alone, for measurements and tests: a cluster of its own, which ends with the block.

Knows configurations and replicas, nothing of what they answer. Wants the extra `ray`.
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

ADDRESS = "127.0.0.2"  # in the place of 127.0.0.1 Ray puts the machine's address in its network
NUM_CPUS = 8  # that replicas may ask for, whatever there are
OBJECT_BYTES = 100_000_000
START_SECONDS = 600.0  # of replicas; the first start on a machine compiles
LOOK_SECONDS = 0.5
SETTINGS = {"model": "gosling", "threads": 1, "standby": False}  # of replicas that share a small machine


class LocalRay:
    """dashboard: its address, where `serve deploy` sends what it deploys."""

    def __init__(self, dashboard: str) -> None:
        self._client = ServeSubmissionClient(dashboard)
        self.url = f"http://127.0.0.1:{_free_port()}"

    def deploy(self, config: Mapping[str, Any]) -> None:
        """As `serve deploy` does, on a port of this cluster's own; returns once all replicas are as they should be.
        Raises TimeoutError if they never are."""
        host, port = self.url.removeprefix("http://").split(":")
        self._client.deploy_applications(dict(config) | {"http_options": {"host": host, "port": int(port)}})
        end = time.monotonic() + START_SECONDS
        time.sleep(LOOK_SECONDS)  # until the controller has begun
        while not self._is_as_deployed():
            if time.monotonic() > end:
                raise TimeoutError(f"Ray Serve has not deployed: {self._client.get_serve_details()}")
            time.sleep(LOOK_SECONDS)

    def replica_pids(self) -> list[int]:
        """Process ids of the replicas that run."""
        replicas = self._application()["deployments"][GANDER]["replicas"]
        return [each["pid"] for each in replicas if each["state"] == "RUNNING"]

    def _is_as_deployed(self) -> bool:
        return bool(self._application()["status"] == "RUNNING")

    def _application(self) -> dict[str, Any]:
        """As Ray tells of it, with its deployments."""
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
