"""`gander ray-config` writes a file that Ray Serve takes, true of our settings; where Ray is installed, Ray says so."""

import importlib
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from server.cli import app
from server.config import ServerSettings
from server.http.sender import SESSION_HEADER


def config(*arguments: str) -> dict[str, Any]:
    done = CliRunner().invoke(app, ["ray-config", *arguments])
    assert done.exit_code == 0, done.output
    read: dict[str, Any] = yaml.safe_load(done.stdout)
    return read


def replicas_of(written: dict[str, Any]) -> dict[str, Any]:
    (application,) = written["applications"]
    (found,) = [each for each in application["deployments"] if each["name"] == "Gander"]
    assert isinstance(found, dict)
    return found


def test_the_model_and_settings_are_each_replicas() -> None:
    written = config("some/model", "--replicas", "3", "--gpus", "1", "--set", "max-running=8", "--set", "standby=false")
    (application,) = written["applications"]
    assert application["args"] == {"model": "some/model", "max_running": 8, "standby": False}
    assert ServerSettings(**application["args"]).max_running == 8
    replicas = replicas_of(written)
    assert replicas["num_replicas"] == 3
    assert "autoscaling_config" not in replicas
    assert replicas["ray_actor_options"]["num_gpus"] == 1
    assert replicas["max_queued_requests"] > 0


def test_a_range_of_replicas_is_scaled_by_what_waits_and_runs() -> None:
    replicas = replicas_of(config("--replicas", "2", "--max-replicas", "5"))
    scaling = replicas["autoscaling_config"]
    assert (scaling["min_replicas"], scaling["max_replicas"]) == (2, 5)
    assert scaling["target_ongoing_requests"] < replicas["max_ongoing_requests"]
    assert "num_replicas" not in replicas


def test_the_file_in_the_repository_is_what_the_command_writes() -> None:
    file = Path(__file__).parents[3] / "deploy" / "ray" / "gander.yaml"
    assert yaml.safe_load(file.read_text()) == config("--replicas", "2", "--max-replicas", "4")


def test_a_setting_that_is_none_is_said_with_its_name() -> None:
    done = CliRunner().invoke(app, ["ray-config", "--set", "max-runing=8"])
    assert done.exit_code == 2
    assert "--max-runing" in done.output


def test_host_and_port_are_rays_and_other_settings_of_the_port_are_refused() -> None:
    written = config("--set", "port=9000", "--set", "host=0.0.0.0")
    assert written["http_options"] == {"host": "0.0.0.0", "port": 9000}
    assert written["applications"][0]["args"] == {"model": "gosling"}
    for arguments in (["--set", "max-connections=8"], ["--replicas", "3", "--max-replicas", "2"]):
        done = CliRunner().invoke(app, ["ray-config", *arguments])
        assert done.exit_code == 2
        assert arguments[-1].partition("=")[0] in done.output


def test_no_variable_of_the_shell_gets_into_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GANDER_API_KEYS", "sesame")
    monkeypatch.setenv("GANDER_MAX_RUNNING", "4")
    monkeypatch.setenv("GANDER_PORT", "9000")
    written = config("--set", "max-waiting=3")
    assert written["applications"][0]["args"] == {"model": "gosling", "max_waiting": 3}


def test_ray_takes_the_file_and_hashes_the_header_that_we_read() -> None:
    schema = pytest.importorskip("ray.serve.schema", reason="ray is not installed: pip install 'gander[ray]'.")
    for arguments in (["--replicas", "2"], ["--replicas", "1", "--max-replicas", "2"]):
        written = config(*arguments)
        taken = schema.ServeDeploySchema.model_validate(written)
        dumped = taken.model_dump(exclude_unset=True)
        assert set(replicas_of(written)) <= set(dumped["applications"][0]["deployments"][1]), "an option is unknown"
        module, _, name = replicas_of(written)["request_router_config"]["request_router_class"].rpartition(".")
        assert hasattr(importlib.import_module(module), name)
    constants = importlib.import_module("ray.serve._private.constants")
    assert constants.SERVE_SESSION_ID.lower().replace("_", "-") == SESSION_HEADER
