"""Ray Serve itself, two replicas of the bundled model: sessions stay, and no replica's death leaves a stream open."""

import asyncio
import socket
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from deploy.measure_affinity import converse, kill_amid
from server.ray.config_file import RayOptions, config_of
from tests.server.servers import wait_until

ray = pytest.importorskip("ray", reason="ray is not installed: pip install 'gander[ray]'.")
pytestmark = pytest.mark.filterwarnings("default")  # Ray's own
STARTS = 300.0  # seconds


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
        return port


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    settings = {"model": "gosling", "threads": 1, "standby": False, "drain_seconds": 2}
    config = config_of(RayOptions(replicas=2, max_replicas=2, cpus=1, gpus=0), settings)
    config["http_options"]["port"] = port = free_port()
    context = ray.init(
        num_cpus=4,
        include_dashboard=True,
        dashboard_port=free_port(),
        _node_ip_address="127.0.0.2",
        log_to_driver=False,
    )
    try:
        applications = f"http://{context.dashboard_url}/api/serve/applications/"
        wait_until(lambda: httpx.put(applications, json=config, timeout=60).status_code == 200, STARTS)
        wait_until(lambda: len(replica_pids()) == 2 and is_ready(port), STARTS)
        yield f"http://127.0.0.1:{port}"
    finally:
        ray.shutdown()


def is_ready(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/ready", timeout=5).status_code == 200
    except httpx.HTTPError:
        return False


def replica_pids() -> list[int]:
    """Of the replicas of this test's own Ray."""
    from ray.util.state import list_actors

    actors: list[Any] = list_actors(filters=[("state", "=", "ALIVE")])
    return [actor.pid for actor in actors if "ServeReplica:gander:Gander" in actor.class_name]


def run(url: str, work: Any) -> Any:
    async def main() -> Any:
        async with httpx.AsyncClient(base_url=url, timeout=300) as client:
            return await work(client)

    return asyncio.run(main())


def test_a_conversation_finds_its_prompt_again_on_its_replica(url: str) -> None:
    for number in range(6):
        replies = run(url, lambda client, number=number: converse(client, number, 3, is_named=True))
        assert [reply.end for reply in replies] == ["end"] * 3
        assert all(later.cached > 0 for later in replies[1:])


def test_every_stream_of_a_killed_replica_ends_and_the_others_serve_on(url: str) -> None:
    told = run(url, lambda client: kill_amid(client, 8, replica_pids()[0]))
    ends = dict(reversed(part.split(" ", 1)) for part in told.split(", "))
    assert set(ends) <= {"end", "error event replica_lost"}, told
    assert sum(map(int, ends.values())) == 8
    (reply,) = run(url, lambda client: converse(client, 1, 1, is_named=True))
    assert reply.end == "end"
