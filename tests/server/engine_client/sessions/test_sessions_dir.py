"""Sessions outlive the server in a folder, within bounds; what cannot be read is refused and stops nothing."""

import hashlib
import logging
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from decoding.core.session_info import SessionState
from decoding.errors import ConfigError
from server.config import ServerSettings
from server.engine_client.sessions.session_file import seal
from server.engine_client.sessions.session_folder import FolderLimits, SessionFolder
from server.http.keys import TENANT_LENGTH
from tests.server.servers import RunningServer, make_model_folder, running_server, wait_until

KEY, SESSION = "the-key-of-alice", "the-session-of-alice"
LONG, SHORT = "a" * 700, "a"
ROOMY = FolderLimits(per_tenant=2**20, in_all=2**20, time_to_live=3600.0)


@contextmanager
def started(model: Path, folder: Path | None, **settings: Any) -> Iterator[RunningServer]:
    given: dict[str, Any] = {"api_keys": KEY, "admin_keys": "root", "drain_seconds": 2} | settings
    place = None if folder is None else str(folder)
    with running_server(ServerSettings(model=str(model), sessions_dir=place, **given)) as server:
        yield server


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return make_model_folder(tmp_path / "toy")


def ask(server: RunningServer, prompt: str, session: str = SESSION) -> None:
    body = {"prompt": prompt, "max_tokens": 1, "session_id": session}
    response = server.http.post("/v1/completions", json=body, headers=bearer(KEY))
    assert response.status_code == 200, response.text


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def sizes(server: RunningServer) -> dict[str, int]:
    cards = server.http.get("/v1/sessions", headers=bearer(KEY)).json()["data"]
    return {card["id"]: card["bytes"] for card in cards}


def files_in(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.session"))


def test_a_session_goes_on_in_the_next_server_when_it_is_asked_for(model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "sessions"
    with started(model, folder) as server:
        ask(server, LONG)
        ask(server, LONG, "other")
    (file, other) = files_in(folder)
    assert {each.stat().st_mode & 0o777 for each in (file, other)} == {0o600}
    for path in folder.rglob("*"):
        assert path.stat().st_mode & 0o077 == 0
        for secret in (KEY, SESSION):
            assert secret not in str(path.relative_to(folder))
            assert path.is_dir() or secret.encode() not in path.read_bytes()
    with started(model, folder) as server:
        assert sizes(server) == {}, "sessions are loaded before they are asked for"
        ask(server, SHORT)
        assert sizes(server) == {SESSION: len(LONG)}
        path = f"/v1/sessions/{SESSION}"
        assert server.http.delete(path, headers=bearer(KEY)).status_code == 200
        assert server.http.delete(path, headers=bearer(KEY)).status_code == 404
        assert server.http.delete("/v1/sessions/other", headers=bearer(KEY)).status_code == 200, "its file is not found"
    assert files_in(folder) == []
    with started(model, folder) as server:
        ask(server, SHORT)
        assert sizes(server) == {SESSION: len(SHORT)}


def cut(file: Path, _: Path) -> None:
    file.write_bytes(file.read_bytes()[:-10])


def tamper(file: Path, _: Path) -> None:
    data = bytearray(file.read_bytes())
    data[-10] ^= 1
    file.write_bytes(data)


def empty(file: Path, _: Path) -> None:
    file.write_bytes(b"")


def swap(file: Path, other: Path) -> None:
    shutil.copy(other, file)


def test_files_that_cannot_be_gone_on_with_are_refused_in_a_sentence_each_and_stop_nothing(
    model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder, tenant = tmp_path / "sessions", hashlib.sha256(KEY.encode()).hexdigest()[:TENANT_LENGTH]
    spoiled = {spoil.__name__: spoil for spoil in (cut, tamper, empty, swap)}
    with started(model, folder) as server:
        for name in (*spoiled, SESSION):
            ask(server, LONG, name)
    paths = {name: SessionFolder(folder, ROOMY).path_of(tenant, name) for name in (*spoiled, SESSION)}
    for name, spoil in spoiled.items():
        spoil(paths[name], paths[SESSION])
    caplog.clear()
    with started(model, folder) as server, caplog.at_level(logging.WARNING, "gander.sessions"):
        for name in (*spoiled, *spoiled, SESSION):
            ask(server, SHORT, name)
        assert sizes(server) == dict.fromkeys(spoiled, len(SHORT)) | {SESSION: len(LONG)}
    assert len(caplog.messages) == len(spoiled)
    for name, line in zip(spoiled, caplog.messages, strict=True):
        assert line.startswith(f"The session in {paths[name]} is not gone on with: it ")


def test_a_session_of_another_model_is_refused(model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "sessions"
    with started(model, folder) as server:
        ask(server, LONG)
    with started(make_model_folder(tmp_path / "other", identity="another"), folder) as server:
        ask(server, SHORT)
        assert sizes(server) == {SESSION: len(SHORT)}
    assert "it is of another model" in caplog.text


def test_files_that_a_server_did_not_sign_are_no_sessions_to_it(
    model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder, key = tmp_path / "sessions", tmp_path / "key"
    key.write_text("a secret of thirty-two characters\n")
    with started(model, folder, sessions_key=str(key)) as server:
        ask(server, LONG)
    with started(model, folder, sessions_key=str(key)) as server:
        ask(server, SHORT)
        assert sizes(server) == {SESSION: len(LONG)}
    key.write_text("another of thirty-two characters")
    with started(model, folder, sessions_key=str(key)) as server:
        ask(server, SHORT)
        assert sizes(server) == {SESSION: len(SHORT)}
    assert "has another key" in caplog.text
    with pytest.raises(ConfigError, match="--sessions-dir, which is not given"), started(model, None, sessions_key="k"):
        pass


def test_a_pause_is_enough_for_a_file(model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "sessions"
    with started(model, folder) as server:
        ask(server, LONG)
        wait_until(lambda: files_in(folder))


def test_an_admin_moves_a_session_to_another_server(model: Path, tmp_path: Path) -> None:
    path = f"/v1/sessions/{SESSION}/export"
    with started(model, None) as one, started(model, tmp_path / "sessions") as two:
        ask(one, LONG)
        ask(two, SHORT)
        owner = one.http.get("/v1/sessions", headers=bearer(KEY)).json()["data"][0]["owner"]
        whose, root = {"owner": owner}, bearer("root")
        assert one.http.get(path, headers=bearer(KEY)).status_code == 403
        assert one.http.get(path, headers=root).status_code == 404, "another tenant's session was taken for the admin's"
        exported = one.http.get(path, params=whose, headers=root)
        assert (exported.status_code, exported.headers["content-type"]) == (200, "application/octet-stream")
        assert two.http.put(path, params=whose, headers=bearer(KEY), content=exported.content).status_code == 403
        for wrong in (b"", exported.content[:-1], exported.content.replace(b"id_fake", b"id_real")):
            refused = two.http.put(path, params=whose, headers=root, content=wrong)
            assert (refused.status_code, refused.json()["error"]["code"]) == (400, "invalid_session")
        assert sizes(two) == {SESSION: len(SHORT)}
        taken = two.http.put(path, params=whose, headers=root, content=exported.content)
        assert (taken.status_code, taken.content) == (204, b"")
        assert sizes(two) == {SESSION: len(LONG)}
        for stores in ({"ngrams": []}, {"replies": []}, {}):  # whole, and no session's
            strange = seal(SessionState(owner, SESSION, stores), two.served.client.workers[0].ready.identity)
            refused = two.http.put(path, params=whose, headers=root, content=strange)
            assert (refused.status_code, refused.json()["error"]["code"]) == (400, "invalid_session")
            assert sizes(two) == {SESSION: len(LONG)}, "what was refused has deleted the session that was there"
        large = two.http.put(path, params=whose, headers=root, content=bytes(5 * 2**20))
        assert large.status_code == 400, "a session may be larger than other bodies"


def test_a_session_is_moved_and_deleted_by_names_that_requests_can_give_it(model: Path) -> None:
    with started(model, None) as server:
        ask(server, LONG)
        for path in ("a%20b", "%C3%A4", "a%09b", "x" * 129, "a%00b"):
            for call in (
                server.http.build_request("DELETE", f"/v1/sessions/{path}"),
                server.http.build_request("GET", f"/v1/sessions/{path}/export"),
                server.http.build_request("PUT", f"/v1/sessions/{path}/export", content=b""),
            ):
                call.headers["Authorization"] = "Bearer root"
                refused = server.http.send(call)
                assert (refused.status_code, refused.json()["error"]["param"]) == (400, "session_id"), call.url
        for owner in ("nobody", "../..", "A" * 32, "a" * 33, "\0"):
            path = f"/v1/sessions/{SESSION}"
            for refused in (
                server.http.delete(path, params={"owner": owner}, headers=bearer("root")),
                server.http.get(f"{path}/export", params={"owner": owner}, headers=bearer("root")),
                server.http.put(f"{path}/export", params={"owner": owner}, headers=bearer("root"), content=b""),
            ):
                assert (refused.status_code, refused.json()["error"]["param"]) == (400, "owner")
        assert sizes(server) == {SESSION: len(LONG)}


def state(session_id: str, num_bytes: int = 1000, tenant: str = "alice") -> SessionState:
    return SessionState(tenant, session_id, {"ngrams": [bytes(num_bytes)]})


def aged(folder: Path, seconds: float) -> None:
    """All that is there was last used so long ago."""
    for path in files_in(folder):
        status = path.stat()
        os.utime(path, (status.st_atime - seconds, status.st_mtime - seconds))


def kept_of(folder: SessionFolder, names: list[tuple[str, str]]) -> list[tuple[str, str]]:
    return [(tenant, name) for tenant, name in names if folder.read(tenant, name, "m") is not None]


def test_what_was_not_used_for_longest_goes_first_of_a_key_and_of_all(tmp_path: Path) -> None:
    folder = SessionFolder(tmp_path, FolderLimits(per_tenant=3500, in_all=5000, time_to_live=3600.0))
    for name in "abc":
        folder.write(state(name), "m")
        aged(tmp_path, 10)
    assert folder.read("alice", "a", "m") is not None  # a use
    aged(tmp_path, 10)
    folder.write(state("d"), "m")
    folder.tidy()
    names = [("alice", name) for name in "abcd"]
    assert kept_of(folder, names) == [("alice", "a"), ("alice", "c"), ("alice", "d")]
    aged(tmp_path, 10)
    for name in "xyz":
        folder.write(state(name, tenant="bob"), "m")
    folder.tidy()
    assert len(files_in(tmp_path)) == 4
    assert kept_of(folder, [("bob", name) for name in "xyz"]) == [("bob", name) for name in "xyz"]


def test_what_is_too_old_is_not_gone_on_with_and_goes(tmp_path: Path) -> None:
    folder = SessionFolder(tmp_path, ROOMY)
    folder.write(state("a"), "m")
    left = files_in(tmp_path)[0].parent / "tmp0123_abc.part"
    left.write_bytes(files_in(tmp_path)[0].read_bytes()[:40])
    aged(tmp_path, 3601)
    assert folder.read("alice", "a", "m") is None
    folder.tidy()
    assert files_in(tmp_path) == []
    assert left.exists(), "another server may be writing it"
    past = time.time() - 3601
    os.utime(left, (past, past))
    folder.tidy()
    assert not left.exists()


def test_a_folder_that_cannot_be_one_is_said_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be written to"):
        SessionFolder(tmp_path / "file", ROOMY)


def test_a_write_that_fails_is_logged_and_leaves_the_old_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = SessionFolder(tmp_path, ROOMY)
    folder.write(state("a"), "m")
    before = folder.read("alice", "a", "m")

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    folder.write(state("a", 7), "m")
    assert "No space left on device" in caplog.text
    assert folder.read("alice", "a", "m") == before
    assert list(tmp_path.rglob("*.part")) == []
