"""`gander connect` says how a tool is pointed at a server, and writes it without losing anything."""

import json
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from server.cli import app
from server.config import ServerSettings
from server.connect.connect import COPY, connect
from server.connect.errors import ConnectError
from server.connect.served import Served, ask
from server.connect.tools import TOOLS
from tests.server.servers import RunningServer, make_model_folder, running_server

SERVED = Served("http://127.0.0.1:8000", "toy", 4096, can_chat=True, key=None)


def said(name: str, served: Served = SERVED, home: Path = Path("/nowhere"), is_written: bool = False) -> str:
    lines: list[str] = []
    connect(TOOLS[name], served, home, is_written, lines.append)
    return "\n".join(lines)


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = make_model_folder(tmp_path_factory.mktemp("models") / "toy")
    with running_server(ServerSettings(model=str(folder), api_keys="secret", drain_seconds=1)) as server:
        yield server


@pytest.mark.parametrize("name", TOOLS)
def test_each_tool_is_told_address_model_and_start(name: str) -> None:
    text = said(name, Served("http://host:9", "my/model", 40_000, can_chat=True, key="k3y"))
    assert "http://host:9" in text
    assert "k3y" in text
    assert TOOLS[name].start in text.splitlines()
    assert ("my/model" in text) == (name != "openwebui"), "which asks the server for its models"
    assert "context of" not in text


def test_what_a_tool_lacks_is_said() -> None:
    small = Served("http://host", "toy", 2048, can_chat=False, key=None)
    text = said("claude", small)
    assert "32,768 tokens, and this server has 2,048" in text
    assert "no chat template" in text
    assert "call them" in text
    assert "call them" not in said("aider")


@pytest.mark.parametrize("name", [name for name, tool in TOOLS.items() if tool.path is not None])
def test_files_are_written_for_the_user_alone_with_a_copy_of_what_was_there(name: str, tmp_path: Path) -> None:
    path = tmp_path / str(TOOLS[name].path)
    assert f"Wrote {path}." in said(name, home=tmp_path, is_written=True)
    assert path.stat().st_mode & 0o077 == 0
    first = path.read_text()
    assert "is as it should be" in said(name, home=tmp_path, is_written=True)
    assert not path.with_name(path.name + COPY).exists()
    said(name, Served("http://other", "toy", 4096, can_chat=True, key=None), tmp_path, True)
    assert path.with_name(path.name + COPY).read_text() == first
    assert "http://other" in path.read_text()
    content = TOOLS[name].content(SERVED)
    if path.suffix == ".toml":
        assert tomllib.loads(content)["model_providers"]["gander"]["base_url"] == "http://127.0.0.1:8000/v1"
    elif path.suffix == ".json":
        json.loads(content)


def test_what_a_users_file_has_stays(tmp_path: Path) -> None:
    path = tmp_path / str(TOOLS["zed"].path)
    path.parent.mkdir(parents=True)
    own = {"theme": "dark", "language_models": {"ollama": {"api_url": "x"}, "openai_compatible": {"Other": {}}}}
    path.write_text(json.dumps(own))
    said("zed", home=tmp_path, is_written=True)
    now = json.loads(path.read_text())
    assert now["theme"] == "dark"
    assert now["language_models"]["ollama"] == {"api_url": "x"}
    assert set(now["language_models"]["openai_compatible"]) == {"Other", "Gander"}
    path.write_text("// my settings\n{}")
    with pytest.raises(ConnectError, match="comments"):
        said("zed", home=tmp_path, is_written=True)
    assert path.read_text() == "// my settings\n{}"


def test_a_tool_without_a_file_and_a_home_that_cannot_be_written_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConnectError, match="reads no file"):
        said("qwen", home=tmp_path, is_written=True)
    blocked = tmp_path / "file"
    blocked.touch()
    with pytest.raises(ConnectError, match="cannot be written"):
        said("codex", home=blocked, is_written=True)


def test_a_server_is_asked_what_it_serves(server: RunningServer, locked: RunningServer) -> None:
    for url in (server.url, f"{server.url}/v1", f"{server.url}/", server.url.removeprefix("http://")):
        assert ask(url, None) == Served(server.url, "toy", 4096, can_chat=True, key=None)
    assert ask(locked.url, "secret").key == "secret"
    with pytest.raises(ConnectError, match="wants an API key"):
        ask(locked.url, None)
    with pytest.raises(ConnectError, match="does not know this API key"):
        ask(locked.url, "other")
    with pytest.raises(ConnectError, match="No server answers"):
        ask("http://127.0.0.1:9", None)


def test_the_command_prints_or_says_what_is_wrong(
    server: RunningServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    run = CliRunner().invoke
    shown = run(app, ["connect", "claude", "--url", server.url])
    assert (shown.exit_code, f'"ANTHROPIC_BASE_URL": "{server.url}"' in shown.output) == (0, True), shown.output
    written = run(app, ["connect", "claude", "--url", server.url, "--write"])
    assert written.exit_code == 0
    assert json.loads((tmp_path / ".claude/gander.json").read_text())["env"]["ANTHROPIC_MODEL"] == "toy"
    wrong = run(app, ["connect", "emacs", "--url", server.url])
    assert (wrong.exit_code, "there are codex, claude" in wrong.output) == (2, True), wrong.output
