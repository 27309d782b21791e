"""POST /admin/reload and SIGHUP: what a running server takes up, what it names, and that nothing wrong hurts it."""

import logging
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from server.config import ServerSettings, SettingSources
from server.process.draining_server import DrainingServer
from server.process.serving import http_config
from server.settings.live import AT_THE_START, LIVE, QUEUE_LIMITS
from tests.server.servers import RunningServer, make_model_folder, running_server

ADMIN, USER = {"X-Api-Key": "root"}, {"X-Api-Key": "alice"}
AT_FIRST = "admin-keys = 'root'\nmax-choices = 4\nmax-waiting-tokens = 100\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "keys").write_text("alice\n")
    (tmp_path / "gander.toml").write_text(AT_FIRST)
    return tmp_path


@pytest.fixture
def running(folder: Path) -> Iterator[RunningServer]:
    """A server whose settings are from a file, and an admin's key."""
    flags = {"model": str(make_model_folder(folder / "toy")), "api_key_file": str(folder / "keys")}
    sources = SettingSources(flags, {}, folder / "gander.toml")
    ((_, found),) = sources.read().models
    with running_server(found.settings) as server:
        server.service.sources = sources
        yield server


def reload(server: RunningServer, **headers: str) -> httpx.Response:
    return server.http.post("/admin/reload", headers=ADMIN | headers)


def test_what_can_change_holds_at_once_and_the_rest_is_named(running: RunningServer, folder: Path) -> None:
    body = {"prompt": "a", "n": 3, "max_tokens": 1}
    assert running.http.post("/v1/completions", json=body, headers=USER).status_code == 200
    wanted = "max-choices = 2\nmax-waiting-tokens = 7\nkeep-alive-seconds = 3\nport = 1\nmax-waiting = 3\n"
    (folder / "gander.toml").write_text(f"admin-keys = 'root'\n{wanted}")
    reply = reload(running)
    assert reply.status_code == 200
    assert reply.json() == {
        "changed": ["max-waiting-tokens", "max-choices", "keep-alive-seconds"],
        "needs_restart": ["max-waiting", "port"],
    }
    refused = running.http.post("/v1/completions", json=body, headers=USER)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "n")
    limits, settings = running.served.client.limits, running.service.settings
    assert (limits.max_waiting_tokens, limits.max_waiting, settings.port, settings.max_waiting) == (7, 1024, 8000, 1024)
    (folder / "gander.toml").write_text(AT_FIRST)
    assert reload(running).json()["needs_restart"] == []
    assert reload(running).json() == {"changed": [], "needs_restart": []}
    assert running.http.post("/v1/completions", json=body, headers=USER).status_code == 200


def test_flags_win_over_the_file_again(running: RunningServer, folder: Path) -> None:
    (folder / "gander.toml").write_text(f"{AT_FIRST}model = 'org/other'\n")
    assert reload(running).json() == {"changed": [], "needs_restart": []}


def test_the_log_level_changes(running: RunningServer, folder: Path) -> None:
    before = logging.getLogger().level
    try:
        (folder / "gander.toml").write_text(f"{AT_FIRST}log-level = 'error'\n")
        assert reload(running).json()["changed"] == ["log-level"]
        assert logging.getLogger().level == logging.ERROR
    finally:
        logging.getLogger().setLevel(before)


@pytest.mark.parametrize(
    ("file", "keys", "said"),
    [
        ("max-choices = 'x'\nprot = 1", "carol\n", "gander.toml: max-choices: Input should be a valid integer\ngander"),
        ("max-choices = ", "carol\n", "gander.toml is no TOML"),
        ("max-choices = 1", "carol weight=x\n", "the API key file cannot be read: line 1: weight must be a number"),
    ],
)
def test_what_is_wrong_is_told_and_changes_nothing(
    running: RunningServer, folder: Path, file: str, keys: str, said: str
) -> None:
    before = running.service.settings
    (folder / "gander.toml").write_text(file)
    (folder / "keys").write_text(keys)
    error = reload(running).json()["error"]
    assert (error["code"], error["message"].partition(". ")[0]) == (
        "invalid_config",
        "The settings of before still hold",
    )
    assert error["message"].partition(". ")[2].startswith(said)
    assert running.service.settings is before
    assert running.http.get("/v1/models", headers=USER).status_code == 200
    assert running.service.keys.find("carol") is None


def test_only_an_admin_may(running: RunningServer) -> None:
    assert reload(running, **{"X-Api-Key": ""}).status_code == 401
    reply = reload(running, **USER)
    assert (reply.status_code, reply.json()["error"]["code"]) == (403, "admin_key_required")


def test_a_hangup_does_the_same(running: RunningServer, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    server = DrainingServer(http_config(running.service), running.service)
    (folder / "gander.toml").write_text("admin-keys = 'root'\nmax-choices = 1\nport = 1")
    with caplog.at_level(logging.INFO, "gander"):
        server._hang_up(signal.SIGHUP)
        (folder / "gander.toml").write_text("max-choices = 0\nprot = 1")
        server._hang_up(signal.SIGHUP)
    assert running.service.settings.max_choices == 1
    said = [record.getMessage() for record in caplog.records if "settings" in record.getMessage()]
    assert said[0] == "The settings were read again: max-waiting-tokens, max-choices changed; port needs a restart."
    assert said[1].startswith("The settings of before still hold: gander.toml: max-choices: Input should be greater")
    assert said[1].endswith("; gander.toml: prot: no such setting; did you mean port?")


def test_live_settings_are_settings() -> None:
    assert ServerSettings.model_fields.keys() >= LIVE | QUEUE_LIMITS | AT_THE_START
    assert not LIVE & {"port", "model", "api_keys", "max_waiting", "chat_template"}
