"""Models pulled and removed through Ollama's API, from a hub on this machine."""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from server.config import ServerSettings
from server.library.installed import installed_models
from tests.local_hub import LocalHub, local_hub, use_hub
from tests.server.servers import RunningServer, make_model_folder, running_server, wait_until

FILES = {"tiny-q4_k_m.gguf": random.Random(0).randbytes(3_000_000), "tiny-q8_0.gguf": b"8" * 2000}
NAME = "org/tiny:Q8_0"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalHub]:
    with local_hub({"org/tiny": FILES}) as running:
        use_hub(monkeypatch, running.url, tmp_path / "cache")
        yield running


@pytest.fixture
def keyed(tmp_path: Path, hub: LocalHub) -> Iterator[RunningServer]:  # noqa: ARG001 - which it asks
    settings = ServerSettings(
        model=str(make_model_folder(tmp_path / "toy")), api_keys="user", admin_keys="admin", drain_seconds=2
    )
    with running_server(settings) as server:
        server.http.headers["authorization"] = "Bearer admin"
        yield server


def pulled(server: RunningServer, **body: Any) -> list[dict[str, Any]]:
    reply = server.http.post("/api/pull", json=body)
    assert reply.status_code == 200, reply.text
    return [json.loads(line) for line in reply.text.splitlines()]


def names() -> list[str]:
    return sorted(str(model.name) for model in installed_models())


def test_a_pull_tells_how_far_it_is_and_the_model_can_be_removed(keyed: RunningServer) -> None:
    first, *others, last = pulled(keyed, model="org/tiny:Q4_K_M")
    assert (first, last) == ({"status": "pulling manifest"}, {"status": "success"})
    assert {"status": "pulling tiny-q4_k_m.gguf", "total": 3_000_000, "completed": 3_000_000} in others
    assert pulled(keyed, model=NAME, stream=False) == [{"status": "success"}]
    assert names() == ["org/tiny:Q4_K_M", NAME]
    assert keyed.http.request("DELETE", "/api/delete", json={"model": NAME}).status_code == 200
    assert names() == ["org/tiny:Q4_K_M"]


def test_it_is_for_admin_keys(keyed: RunningServer, hub: LocalHub) -> None:
    keyed.http.headers["authorization"] = "Bearer user"
    for method, path in (("POST", "pull"), ("DELETE", "delete")):
        reply = keyed.http.request(method, f"/api/{path}", json={"model": NAME})
        assert reply.status_code == 403
        assert "admin keys" in reply.json()["error"]
    assert not hub.fetched


@pytest.mark.parametrize(
    ("name", "status", "words"),
    [
        ("org/other", 404, "org/other is not to be found"),
        ("org/tiny:Q2_K", 400, "Q2_K"),
        ("llama3.2", 400, "llama3.2 is no name on the hub"),
    ],
)
def test_what_cannot_be_pulled_is_refused(keyed: RunningServer, name: str, status: int, words: str) -> None:
    for body in ({"model": name}, {"name": name, "stream": False}):
        reply = keyed.http.post("/api/pull", json=body)
        assert reply.status_code == status, reply.text
        assert words in reply.json()["error"]


def test_what_is_not_there_cannot_be_removed(keyed: RunningServer) -> None:
    reply = keyed.http.request("DELETE", "/api/delete", json={"model": NAME})
    assert reply.status_code == 400
    assert "is not here" in reply.json()["error"]


def test_a_pull_that_breaks_off_says_so_and_the_next_goes_on(keyed: RunningServer, hub: LocalHub) -> None:
    hub.breaks["tiny-q4_k_m.gguf"] = 1_200_000
    *_, last = pulled(keyed, model="org/tiny:Q4_K_M")
    assert list(last) == ["error"]
    assert "another one goes on from there" in last["error"]
    reply = keyed.http.post("/api/pull", json={"model": "org/tiny:Q4_K_M", "stream": False})
    assert (reply.status_code, list(reply.json())) == (400, ["error"])
    hub.breaks.clear()
    assert pulled(keyed, model="org/tiny:Q4_K_M")[-1] == {"status": "success"}
    wait_until(lambda: names() == ["org/tiny:Q4_K_M"])
