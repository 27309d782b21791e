"""The command line, without starting a server."""

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import server.process.runner
from decoding.errors import ConfigError
from server.app import create_service
from server.cli import app
from server.config import ServerSettings, SettingSources


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[ServerSettings]:
    """The settings `serve` would have run with."""
    seen: list[ServerSettings] = []

    def run(settings: ServerSettings, models: Sequence[ServerSettings], sources: SettingSources) -> int:
        assert "sesame" not in repr(sources)
        assert settings.max_loaded == models[0].max_loaded
        seen.extend(models)
        return 0

    monkeypatch.setattr(server.process.runner, "run", run)
    return seen


def invoke(*arguments: str) -> Any:
    return CliRunner().invoke(app, arguments)


def test_serve_takes_a_model_and_flags(started: list[ServerSettings]) -> None:
    result = invoke("serve", "org/name", "--port", "0", "--dtype", "bfloat16", "--trust-remote-code", "--threads", "2")
    assert result.exit_code == 0, result.output
    settings = started[0]
    assert (settings.model, settings.port, settings.dtype) == ("org/name", 0, "bfloat16")
    assert (settings.trust_remote_code, settings.threads) == (True, 2)


def test_serve_takes_int8_and_int4_weights_and_no_other_kind(started: list[ServerSettings]) -> None:
    for weights in ("int8", "int4"):
        assert invoke("serve", "--weights", weights).exit_code == 0
        assert started[-1].engine_config().weights == weights
    assert invoke("serve", "--weights", "int3").exit_code != 0


def test_several_gpus_are_workers_by_both_names_or_parts_of_one_model(started: list[ServerSettings]) -> None:
    for flag in ("--workers", "--data-parallel-size"):
        assert invoke("serve", flag, "2").exit_code == 0
    assert [settings.engine_config().workers for settings in started] == [2, 2]
    assert invoke("serve", "--tensor-parallel-size", "2").exit_code == 0
    assert started[-1].engine_config().tensor_parallel_size == 2
    assert invoke("serve", "--tensor-parallel-size", "0").exit_code == 2


def test_serve_without_arguments_serves_the_bundled_model(started: list[ServerSettings]) -> None:
    assert invoke("serve").exit_code == 0
    assert started == [ServerSettings()]
    assert started[0].model == "gosling"


def test_variables_are_read(started: list[ServerSettings], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GANDER_MODEL", "from/env")
    assert invoke("serve").exit_code == 0
    assert started[0].model == "from/env"


def test_a_variable_that_is_no_setting_is_warned_of(
    started: list[ServerSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("MAX_RUNNING", "MAX_RUNING", "PORT_8000_TCP", "SERVICE_HOST", "REAL_MODELS", "TEST_KILLS"):
        monkeypatch.setenv(f"GANDER_{name}", "4")
    output = invoke("serve").output
    assert output.startswith("GANDER_MAX_RUNING: this variable is no setting")
    assert output.count("GANDER_") == 1
    assert started[0].max_running == 4


def test_what_is_on_by_default_has_a_flag_to_turn_it_off(
    started: list[ServerSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert invoke("serve", "--no-prefix-cache").exit_code == 0
    monkeypatch.setenv("GANDER_PREFIX_CACHE", "false")
    assert invoke("serve").exit_code == 0
    assert invoke("serve", "--prefix-cache").exit_code == 0
    assert [settings.prefix_cache for settings in started] == [False, False, True]


@pytest.mark.parametrize("name", ["API", "ADMIN"])
@pytest.mark.parametrize("keys", ["", " , "])
def test_keys_that_are_none_open_no_server(
    started: list[ServerSettings], monkeypatch: pytest.MonkeyPatch, name: str, keys: str
) -> None:
    monkeypatch.setenv(f"GANDER_{name}_KEYS", keys)
    result = invoke("serve")
    assert (result.exit_code, started) == (2, [])
    said = " ".join(result.output.split())
    assert said == f"GANDER_{name}_KEYS: this is empty, and no key can be meant by it: give keys, or unset it."


def test_a_key_on_the_command_line_is_warned_of(started: list[ServerSettings]) -> None:
    hashed = "sha256:" + 64 * "a"
    assert invoke("serve", "--api-keys", hashed).output == ""
    said = invoke("serve", "--api-keys", f"{hashed}, sesame").output
    assert said.startswith("--api-keys has a key: every user of this machine can read it there")
    assert "sesame" not in said
    assert len(started) == 2


def test_keys_are_not_for_the_processes_that_the_server_starts(
    started: list[ServerSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GANDER_API_KEYS", "sesame")
    monkeypatch.setenv("GANDER_ADMIN_KEYS", "root")
    assert invoke("serve").output == ""
    assert not {"GANDER_API_KEYS", "GANDER_ADMIN_KEYS"} & set(os.environ)
    assert started[0].api_keys is not None


@pytest.mark.parametrize("memory", ["8", "[/8]"])  # the second is markup to a terminal
def test_a_memory_that_is_none_is_named_with_what_would_be_one(started: list[ServerSettings], memory: str) -> None:
    result = invoke("serve", "--kv-memory", memory)
    assert (result.exit_code, started) == (2, [])
    said = " ".join(result.output.split())
    assert said.startswith(f"--kv-memory: '{memory}' is neither a share of the free memory, such as 0.5, nor bytes")


@pytest.mark.parametrize("arguments", [("--port", "99999"), ("--dtype", "int4"), ("--port", "x"), ("--surprise", "1")])
def test_wrong_flags_end_with_status_2(started: list[ServerSettings], arguments: tuple[str, ...]) -> None:
    assert invoke("serve", *arguments).exit_code == 2
    assert not started


def test_help_names_every_setting_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = invoke("serve", "--help").output
    assert "GANDER_MAX_RUNNING" in text
    for name in set(ServerSettings.model_fields) - {"model"}:
        assert re.search(rf"  --(no-)?{name.replace('_', '-')}[ /,]", text), name
    for command in ((), ("serve",), ("ray-config",)):
        assert "bool" not in invoke(*command, "--help").output, "flags take no value"
    assert invoke("version").output.startswith("gander ")


def test_the_server_process_imports_no_torch() -> None:
    code = (
        "import sys, server.process.serving, server.cli\n"
        "heavy = {'torch', 'transformers', 'numba'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize("model", ["/nothing/here", "./nothing", "~/nothing/here"])
def test_a_folder_that_is_not_there_is_said_so_at_once(model: str) -> None:
    with pytest.raises(
        ConfigError, match=f"there is no folder {Path(model).expanduser() if model[0] == '~' else model}"
    ):
        create_service(ServerSettings(model=model))


def test_a_name_that_no_folder_can_have_is_said_so() -> None:
    with pytest.raises(ConfigError, match=r"there is no folder|cannot be read: File name too long"):
        create_service(ServerSettings(model="a" * 300))


def test_the_version_is_a_flag_too() -> None:
    assert invoke("--version").exit_code == 0
    assert invoke("--version").output == invoke("version").output


def test_several_models_have_names_of_their_own_or_given_ones(started: list[ServerSettings], tmp_path: Path) -> None:
    odd = tmp_path / "a=b"
    odd.mkdir()
    assert invoke("serve", "gosling", "big=org/model", str(odd), "--max-loaded", "2").exit_code == 0
    assert [settings.model for settings in started] == ["gosling", "org/model", str(odd)]
    assert [settings.model_names for settings in started] == [("gosling",), ("big",), ("a=b",)]
    assert {settings.max_loaded for settings in started} == {2}
    refused = invoke("serve", "gosling", "gosling")
    assert refused.exit_code == 2
    assert "have one name, gosling" in " ".join(refused.output.split())


def test_a_name_keeps_the_aliases_that_flags_give(started: list[ServerSettings]) -> None:
    assert invoke("serve", "mine=gosling", "--served-model-name", "*").exit_code == 0
    assert started[0].model_names == ("mine",)
    assert started[0].serves("whatever an agent sends")


def test_all_models_of_the_file_are_served(
    started: list[ServerSettings], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gander.toml").write_text(
        "max-loaded = 1\n[models.small]\nmodel = 'gosling'\nkeep-alive = 60\n[models.big]\nmodel = 'org/model'\n"
    )
    monkeypatch.setenv("GANDER_CONFIG", str(tmp_path / "gander.toml"))
    assert invoke("serve").exit_code == 0
    assert [(each.model_name, each.model, each.keep_alive) for each in started] == [
        ("small", "gosling", 60.0),
        ("big", "org/model", None),
    ]
    started.clear()
    assert invoke("serve", "big", "other=gosling").exit_code == 0
    assert [each.model_name for each in started] == ["big", "other"]
