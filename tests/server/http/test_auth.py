"""API keys, who may see what, and web origins."""

import hashlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from openai import AuthenticationError, OpenAI
from pydantic import ValidationError

from decoding.errors import ConfigError
from server.config import ServerSettings
from server.http.keys import KeyRing
from server.http.repeated_lines import OnceAMinute
from tests.server.servers import RunningServer, make_model_folder, running_server

HASHED = hashlib.sha256(b"carol").hexdigest()


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = make_model_folder(tmp_path_factory.mktemp("models") / "toy")
    file = folder / "keys"
    file.write_text("# ours\nbob\n\n")
    settings = ServerSettings(
        model=str(folder),
        drain_seconds=2,
        api_keys=f"alice, sha256:{HASHED}",
        admin_keys="root",
        api_key_file=str(file),
        cors_origins="https://a.example",
    )
    with running_server(settings) as running:
        yield running


def write_still(file: Path, content: str | bytes) -> None:
    """Write a file that then seems to be a minute old."""
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    minute_ago = time.time() - 60
    os.utime(file, (minute_ago, minute_ago))


def ring_of(file: Path, content: str, now: Callable[[], float]) -> KeyRing:
    """The keys of a file that is written now."""
    file.write_text(content)
    os.utime(file, (now(), now()))
    return KeyRing(None, None, str(file), now)


def status(server: RunningServer, path: str, key: str | None, method: str = "GET") -> int:
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    return server.http.request(method, path, headers=headers).status_code


def test_only_health_ready_and_the_page_are_open(locked: RunningServer) -> None:
    for path in ("/health", "/ready", "/", "/web/app.js"):
        assert status(locked, path, None) == 200
    for path in ("/v1/models", "/version", "/openapi.json", "/metrics", "/v1/sessions", "/nothing"):
        response = locked.http.get(path)
        assert response.status_code == 401, path
        assert response.json()["error"]["code"] == "invalid_api_key"
        assert response.json()["error"]["type"] == "authentication_error"
        assert response.headers["x-request-id"]
    assert locked.http.post("/v1/completions", json={"prompt": "a"}).status_code == 401


@pytest.mark.parametrize("path", ["/health", "/ready"])
def test_without_a_key_the_status_is_all_that_is_told(locked: RunningServer, path: str) -> None:
    def told(key: str | None) -> dict[str, Any]:
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        body: dict[str, Any] = locked.http.get(path, headers=headers).json()
        return body

    assert told(None) == told("wrong") == {"status": "ready"}
    assert told("alice").keys() == {"status", "sentence", "fraction", "compiling", "engine", "models", "free_bytes"}
    only_admins = {"worker_pid", "workers", "restarts", "last_error", "open_requests"}
    assert told("root").keys() - told("alice").keys() == only_admins


def test_the_log_names_a_key_by_the_first_of_its_hash(locked: RunningServer, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "gander.http"):
        for key in ("alice", "nobody"):
            status(locked, "/v1/models", key)
    lines = [record.getMessage() for record in caplog.records if "/v1/models" in record.getMessage()]
    unmatched = [record.getMessage() for record in caplog.records if " 401 " in record.getMessage()]
    assert [f" with key {hashlib.sha256(b'alice').hexdigest()[:8]}: " in line for line in lines] == [True]
    assert [" with key " in line for line in unmatched] == [False]
    assert "alice" not in "".join(lines)


@pytest.mark.parametrize("key", ["alice", "bob", "carol", "root"])
def test_every_key_lets_in(locked: RunningServer, key: str) -> None:
    assert status(locked, "/v1/models", key) == 200
    assert locked.http.get("/v1/models", headers={"X-Api-Key": key}).status_code == 200


@pytest.mark.parametrize("key", ["", "alic", "Alice", "sha256:" + HASHED, HASHED, "é\udcff"])
def test_nothing_else_lets_in(locked: RunningServer, key: str) -> None:
    headers = {b"X-Api-Key": key.encode("utf-8", "surrogateescape")}
    assert locked.http.get("/v1/models", headers=headers).status_code == 401


def test_the_openai_client_raises_its_own_error(locked: RunningServer) -> None:
    with (
        OpenAI(base_url=f"{locked.url}/v1", api_key="wrong", max_retries=0) as client,
        pytest.raises(AuthenticationError),
    ):
        client.models.list()


def test_metrics_are_for_admins(locked: RunningServer) -> None:
    assert status(locked, "/metrics", "alice") == 403
    assert status(locked, "/metrics", "root") == 200


def test_a_key_sees_its_own_sessions_and_an_admin_all(locked: RunningServer) -> None:
    def headers(key: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {key}"}

    for key in ("alice", "bob"):
        body = {"prompt": "hi", "max_tokens": 1, "session_id": "s"}
        assert locked.http.post("/v1/completions", json=body, headers=headers(key)).status_code == 200
    owners = {}
    for key in ("alice", "bob"):
        cards = locked.http.get("/v1/sessions", headers=headers(key)).json()["data"]
        assert [card["id"] for card in cards] == ["s"]
        owners[key] = cards[0]["owner"]
    assert owners["alice"] == hashlib.sha256(b"alice").hexdigest()[:32]
    cards = locked.http.get("/v1/sessions", headers=headers("root")).json()["data"]
    assert {card["owner"] for card in cards} == set(owners.values())
    path = f"/v1/sessions/s?owner={owners['alice']}"
    assert locked.http.delete(path, headers=headers("bob")).status_code == 403
    assert locked.http.delete(path, headers=headers("root")).status_code == 200
    assert locked.http.delete("/v1/sessions/s", headers=headers("alice")).status_code == 404
    assert locked.http.delete("/v1/sessions/s", headers=headers("bob")).status_code == 200


def test_the_file_is_read_again_when_it_changes(locked: RunningServer) -> None:
    path = Path(locked.service.settings.api_key_file or "")
    before = path.read_text()
    write_still(path, "dave\nadmin erin\n")
    assert status(locked, "/v1/models", "dave") == 200
    assert status(locked, "/v1/models", "bob") == 401
    assert status(locked, "/metrics", "erin") == 200
    path.unlink()
    assert status(locked, "/v1/models", "dave") == 200  # the last keys read still hold
    write_still(path, before)
    assert status(locked, "/v1/models", "bob") == 200


def test_a_web_page_may_call_from_the_allowed_origin_only(locked: RunningServer, server: RunningServer) -> None:
    ask = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
    allowed = locked.http.options("/v1/completions", headers={"Origin": "https://a.example", **ask})
    assert allowed.headers["access-control-allow-origin"] == "https://a.example"
    other = locked.http.options("/v1/completions", headers={"Origin": "https://b.example", **ask})
    assert "access-control-allow-origin" not in other.headers
    closed = server.http.get("/v1/models", headers={"Origin": "https://a.example"})
    assert "access-control-allow-origin" not in closed.headers


def test_settings_hold_no_key_as_it_is() -> None:
    settings = ServerSettings(api_keys="sesame", admin_keys="open")
    assert settings.api_keys == "sha256:" + hashlib.sha256(b"sesame").hexdigest()
    assert "open" not in str(settings.admin_keys)


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("admin", "the key is missing"),
        ("admin requests_per_minute=5", "the key is missing"),
        ("admin # of the team", "the key is missing"),
        ("weight=2", "the key is missing"),
        (f"sha256:{HASHED[:-1]}", "64 hexadecimal digits"),
        (f"admin sha256:{HASHED}0", "64 hexadecimal digits"),
    ],
)
def test_a_line_without_its_key_or_with_part_of_a_hash_makes_no_key(tmp_path: Path, line: str, wrong: str) -> None:
    file = tmp_path / "keys"
    file.write_text(f"alice\n{line}\n")
    with pytest.raises(ConfigError, match=f"line 2: .*{wrong}"):
        KeyRing(None, None, str(file))


def test_part_of_a_hash_is_no_setting_either() -> None:
    with pytest.raises(ValidationError, match="64 hexadecimal digits"):
        ServerSettings(api_keys=f"alice,sha256:{HASHED[:8]}")


def test_comments_may_follow_a_key(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# ours\n  # and more\nk#1 # alice\nadmin\tk2 weight=2 #bob weight=3\n")
    ring = KeyRing(None, None, str(file))
    alice, bob = ring.find("k#1"), ring.find("k2")
    assert alice is not None
    assert bob is not None
    assert (bob.is_admin, bob.terms.weight) == (True, 2)


def test_a_file_that_makes_no_keys_is_told_once_and_a_missing_one_once_a_minute(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "keys"
    file.write_text("alice\n")
    ring = KeyRing(None, None, str(file))
    write_still(file, "alice speed=2\n")
    assert all(ring.find("alice") for _ in range(3))
    assert len(caplog.messages) == 1
    write_still(file, b"\xff" * 20)
    assert all(ring.find("alice") for _ in range(3))
    assert len(caplog.messages) == 2
    file.unlink()
    assert all(ring.find("alice") for _ in range(3))
    shown = OnceAMinute(now=lambda: 0.0)
    assert [shown.filter(record) for record in caplog.records[2:]] == [True, False, False]
    write_still(file, "bob\n")
    assert ring.find("bob")


def test_a_file_that_is_being_written_makes_no_key_of_a_keys_beginning(tmp_path: Path) -> None:
    file, now = tmp_path / "keys", 1000.0
    ring = ring_of(file, "alice\n", lambda: now)

    def known(content: str, still: float) -> list[str]:
        """Whose keys hold when this was written, and nothing more for so many seconds."""
        file.write_text(content)
        os.utime(file, (now - still, now - still))
        return [key for key in ("alice", "sk-long", "sk-long-secret", "bob") if ring.find(key)]

    assert known("sk-long", 0) == known("sk-long", 4) == ["alice"]
    assert known("sk-long-secret\nbo", 4.5) == ["alice"]
    assert known("sk-long-secret\n", 0.3) == ["alice"]
    assert known("sk-long-secret\n", 0.6) == ["sk-long-secret"]
    assert known("", 0.4) == ["sk-long-secret"], "a file is emptied before it is written anew"
    assert known("bob", 5.5) == ["bob"], "a last line may do without its end"
    assert known("alice\n", -60) == ["alice"], "another machine's clock may be ahead"


def test_a_server_that_starts_while_its_file_is_written_lets_nobody_in_by_half_a_key(tmp_path: Path) -> None:
    file, now = tmp_path / "keys", 1000.0
    ring = ring_of(file, "alice\nsk-long", lambda: now)
    assert not ring.is_open
    assert not any(ring.find(key) for key in ("", "alice", "sk-long"))
    ring.reload()
    assert not ring.find("sk-long")
    now += 6
    assert ring.find("alice")
    assert ring.find("sk-long")
    file.write_text("bob\n")
    os.utime(file, (now, now))
    assert not ring.find("bob")
    ring.reload()
    assert ring.find("bob"), "who asks for it has written it"


def test_a_ring_keeps_hashes_only(tmp_path: Path) -> None:
    ring = KeyRing("sesame,two", None, None)
    assert not ring.is_open
    assert "sesame" not in repr(vars(ring))
    caller = ring.find("sesame")
    assert caller is not None
    assert not caller.is_admin
    assert KeyRing(None, None, None).is_open
    with pytest.raises(ConfigError):
        KeyRing(None, None, str(tmp_path / "missing"))
    empty = tmp_path / "empty"
    empty.write_text("")
    os.utime(empty, (1, 1))
    assert not KeyRing(None, None, str(empty)).is_open
