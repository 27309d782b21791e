"""The compose files: valid, closed to other machines, pinned, and mounting what is there."""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.programs import program

ROOT = Path(__file__).parents[2]
BASE = ROOT / "docker-compose.yml"
CUDA = ROOT / "docker-compose.cuda.yml"
SERVICES: dict[str, Any] = yaml.safe_load(BASE.read_text())["services"]
OWN_CHECKS = {"gander", "chat"}  # their images bring a health check


def resolved(*files: Path, profile: str | None = None, **variables: str) -> subprocess.CompletedProcess[str]:
    """What docker-compose makes of the files, without a Docker to talk to."""
    command = [program("docker-compose", "docker-compose"), "--project-directory", str(ROOT)]
    command += [word for file in files for word in ("--file", str(file))]
    command += ["--profile", profile] if profile else []
    environment = {"PATH": "/usr/bin:/bin"} | variables
    return subprocess.run(
        [*command, "config"], capture_output=True, text=True, timeout=60, check=False, env=environment
    )


@pytest.mark.parametrize("files", [(BASE,), (BASE, CUDA)], ids=["cpu", "cuda"])
@pytest.mark.parametrize("profile", [None, "chat"])
def test_the_compose_files_are_valid_alone_and_together(files: tuple[Path, ...], profile: str | None) -> None:
    done = resolved(*files, profile=profile)
    assert done.returncode == 0, done.stderr
    assert set(yaml.safe_load(done.stdout)["services"]) == set(SERVICES)


def test_a_misspelt_key_would_be_found(tmp_path: Path) -> None:
    wrong = tmp_path / "docker-compose.yml"
    wrong.write_text(BASE.read_text().replace("healthcheck:", "healthchek:", 1))
    assert resolved(wrong).returncode != 0


def test_no_port_is_open_to_other_machines_unless_asked_for() -> None:
    for variables, address in (({}, "127.0.0.1"), ({"PUBLISHED_ADDRESS": "0.0.0.0"}, "0.0.0.0")):
        done = resolved(BASE, profile="chat", **variables)
        for name, service in yaml.safe_load(done.stdout)["services"].items():
            assert service["ports"], name
            assert all(port.startswith(f"{address}:") for port in service["ports"]), name


def test_settings_of_the_shell_reach_the_server() -> None:
    done = resolved(BASE, GANDER_MODEL="org/name", GANDER_API_KEYS="a,b", GANDER_KV_MEMORY="8GiB")
    environment = yaml.safe_load(done.stdout)["services"]["gander"]["environment"]
    assert environment["GANDER_MODEL"] == "org/name"
    assert environment["GANDER_API_KEYS"] == "a,b"
    assert environment["GANDER_KV_MEMORY"] == "8GiB"


def test_a_container_has_no_limits_but_those_of_the_machine() -> None:
    """That machine is among the strangers': control groups of version 2 without limits. What processes of one model
    exchange is all that has to be given more."""
    gander = yaml.safe_load(resolved(BASE, CUDA).stdout)["services"]["gander"]
    assert not {"cpus", "cpuset", "mem_limit", "ulimits", "pids_limit"} & set(gander)
    assert "limits" not in gander["deploy"]["resources"]
    assert gander["shm_size"] == "1g"


def test_cuda_changes_the_build_and_asks_for_a_gpu() -> None:
    gander = yaml.safe_load(resolved(BASE, CUDA).stdout)["services"]["gander"]
    assert gander["build"]["args"]["DEVICE"] == "cuda"
    assert gander["image"] != SERVICES["gander"]["image"]
    assert gander["deploy"]["resources"]["reservations"]["devices"][0]["capabilities"] == ["gpu"]


@pytest.mark.parametrize("name", SERVICES)
def test_every_service_is_pinned_restarted_and_checked(name: str) -> None:
    service = SERVICES[name]
    assert re.fullmatch(r"[a-z/-]+:v?\d+\.\d+\.\d+(-\w+)?(@sha256:[0-9a-f]{64})?", service["image"])
    assert service["restart"] == "unless-stopped"
    assert ("healthcheck" in service) != (name in OWN_CHECKS)


def test_the_base_image_is_the_dockerfiles() -> None:
    args = yaml.safe_load(resolved(BASE).stdout)["services"]["gander"]["build"]["args"]
    assert f"ARG BASE={args['BASE']}\n" in (ROOT / "Dockerfile").read_text()


def test_what_the_services_are_given_is_there() -> None:
    mounts = [mount.split(":") for service in SERVICES.values() for mount in service["volumes"]]
    files = {target: ROOT / source for source, target, *_ in mounts if source.startswith("./")}
    assert len(files) == 4
    assert all(path.exists() for path in files.values()), files
    home = dict(line.split("=", 1) for line in SERVICES["grafana"]["environment"])
    dashboard = Path(home["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])
    assert (files[str(dashboard.parent)] / dashboard.name).is_file()
