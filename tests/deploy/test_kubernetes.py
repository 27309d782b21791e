"""The manifests of deploy/kubernetes: valid when they are put together, and true of the server that they start."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from itertools import chain
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from fastapi.routing import APIRoute

from decoding.process.machine import Cores, cores, memory_left
from server.config import ServerSettings
from server.endpoints import health, metrics, models, page, sessions, tokens
from server.endpoints.chat import route as chat
from server.endpoints.completions import route as completions
from server.endpoints.messages import route as messages
from server.endpoints.responses import route as responses
from server.endpoints.responses import stored
from tests.server.servers import PATIENCE, wait_until

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "kubernetes"
COMPONENTS = sorted(FOLDER.glob("components/*"))
SERVE = (sys.executable, "-c", "from server.cli import main; main()")

Manifests = dict[str, dict[str, Any]]


def rendered(folder: Path) -> Manifests:
    """By kind; each is there once."""
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("kubectl is not installed, which renders the manifests.")
    done = subprocess.run([kubectl, "kustomize", str(folder)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    documents = list(yaml.safe_load_all(done.stdout))
    assert len({document["kind"] for document in documents}) == len(documents)
    return {document["kind"]: document for document in documents}


@pytest.fixture(scope="module", params=["cpu", "gpu"])
def manifests(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Manifests:
    """With every component."""
    folder = tmp_path_factory.mktemp(request.param)
    together = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [os.path.relpath(FOLDER / request.param, folder)],
        "components": [os.path.relpath(component, folder) for component in COMPONENTS],
    }
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(together))
    return rendered(folder)


def pod_of(manifests: Manifests) -> dict[str, Any]:
    pod: dict[str, Any] = manifests["Deployment"]["spec"]["template"]["spec"]
    return pod


def container_of(manifests: Manifests) -> dict[str, Any]:
    (container,) = pod_of(manifests)["containers"]
    assert isinstance(container, dict)
    return container


def entrypoint() -> list[str]:
    """That of the image, without its program's name."""
    found = re.search(r"^ENTRYPOINT (\[.*\])$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert found
    name, *arguments = json.loads(found[1])
    assert name == "gander"
    return arguments


def test_every_manifest_of_kubernetes_own_kinds_is_valid(manifests: Manifests) -> None:
    validator = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed.")
    own = [each for each in manifests.values() if re.fullmatch(r"v1|\w+/v1|\w+\.k8s\.io/v1", each["apiVersion"])]
    own = [each for each in own if not each["apiVersion"].startswith("gateway.")]
    assert len(own) == 6
    version = validator.latest_version()
    for each in own:
        validator.validate(each, version, strict=True)
    misspelt = {**own[0], "speck": {}}
    with pytest.raises(validator.ValidationError):
        validator.validate(misspelt, version, strict=True)


def test_a_pod_may_do_nothing_but_serve(manifests: Manifests) -> None:
    pod = pod_of(manifests)
    assert pod["securityContext"]["runAsNonRoot"]
    assert (pod["automountServiceAccountToken"], pod["enableServiceLinks"]) == (False, False)
    user = re.search(r"^USER (\d+):(\d+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert user
    assert [pod["securityContext"][name] for name in ("runAsUser", "runAsGroup")] == [int(user[1]), int(user[2])]
    for container in [*pod["containers"], *pod["initContainers"]]:
        context = container["securityContext"]
        assert (context["readOnlyRootFilesystem"], context["allowPrivilegeEscalation"]) == (True, False)
        assert context["capabilities"] == {"drop": ["ALL"]}


def test_the_server_sizes_itself_by_the_limits_of_its_pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the files that a kubelet makes of them; threads as many as a node has would be throttled."""
    deployment = yaml.safe_load((FOLDER / "base/deployment.yaml").read_text())
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    limits = container["resources"]["limits"]
    assert limits == container["resources"]["requests"], "or the node promises less than the server takes"
    memory_bytes = int(limits["memory"].removesuffix("Gi")) * 2**30
    (group := tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    (group / "cpu.max").write_text(f"{int(limits['cpu']) * 100_000} 100000\n")
    (group / "memory.max").write_text(f"{memory_bytes}\n")
    (group / "memory.current").write_text("4096\n")
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _process: set(range(64)))
    assert cores(tmp_path) == Cores(int(limits["cpu"]), 64, "control group")
    assert memory_left(tmp_path) == memory_bytes - 4096


def test_a_pod_has_the_time_to_end_its_streams(manifests: Manifests) -> None:
    container = container_of(manifests)
    flags = dict(flag.removeprefix("--").split("=") for flag in container["args"])
    _, wait = container["lifecycle"]["preStop"]["exec"]["command"]
    times = (float(wait), float(flags["drain-delay"]), float(flags["drain-seconds"]))
    assert float(flags["drain-seconds"]) >= 600
    assert sum(times) < pod_of(manifests)["terminationGracePeriodSeconds"]
    probe = container["readinessProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] < float(wait), "left out before it refuses anything"


def test_what_stands_in_front_finds_the_service_by_the_session(manifests: Manifests) -> None:
    service = manifests["Service"]
    (port,) = service["spec"]["ports"]
    assert port["targetPort"] in {each["name"] for each in container_of(manifests)["ports"]}
    for route in manifests["HTTPRoute"]["spec"]["rules"]:
        assert route["backendRefs"] == [{"name": service["metadata"]["name"], "port": port["port"]}]
    (target,) = manifests["BackendTrafficPolicy"]["spec"]["targetRefs"]
    assert target["name"] == manifests["HTTPRoute"]["metadata"]["name"]
    hashed = manifests["BackendTrafficPolicy"]["spec"]["loadBalancer"]["consistentHash"]["headers"]
    assert hashed == [{"name": "x-session-id"}]
    (rule,) = manifests["Ingress"]["spec"]["rules"]
    backend = rule["http"]["paths"][0]["backend"]["service"]
    assert backend == {"name": service["metadata"]["name"], "port": {"name": port["name"]}}
    hashed = manifests["Ingress"]["metadata"]["annotations"]["nginx.ingress.kubernetes.io/upstream-hash-by"]
    assert hashed.startswith("$http_x_session_id")
    (endpoint,) = manifests["ServiceMonitor"]["spec"]["endpoints"]
    assert endpoint["port"] == port["name"]
    assert manifests["ServiceMonitor"]["spec"]["selector"]["matchLabels"] == service["metadata"]["labels"]
    assert manifests["ScaledObject"]["spec"]["scaleTargetRef"]["name"] == manifests["Deployment"]["metadata"]["name"]
    assert "replicas" not in manifests["Deployment"]["spec"], "else an apply would undo the scaling"


def test_what_stands_in_front_leads_to_what_clients_ask_for_and_not_to_the_metrics() -> None:
    gateway = yaml.safe_load((FOLDER / "components/gateway/route.yaml").read_text())
    nginx = yaml.safe_load((FOLDER / "components/nginx/ingress.yaml").read_text())
    matches = [rule["matches"] for rule in gateway["spec"]["rules"]]
    assert max(map(len, matches)) <= 8, "older gateways take no more in a rule"
    routed = {(each["path"]["value"], each["path"]["type"].removeprefix("Path")) for each in chain(*matches)}
    (rule,) = nginx["spec"]["rules"]
    assert routed == {(path["path"], path["pathType"]) for path in rule["http"]["paths"]}

    def is_routed(path: str) -> bool:
        return any(path == each or (kind == "Prefix" and path.startswith(f"{each}/")) for each, kind in routed)

    modules = (chat, completions, responses, stored, messages, models, sessions, tokens, health, metrics, page)
    paths = {route.path for module in modules for route in module.router.routes if isinstance(route, APIRoute)}
    assert {path for path in paths if not is_routed(path)} == {"/metrics", "/ready", "/is_sleeping"}


def test_the_rules_of_the_operator_are_prometheus_own(manifests: Manifests) -> None:
    rules = yaml.safe_load((ROOT / "deploy/prometheus/rules/gander.yml").read_text())
    assert manifests["PrometheusRule"]["spec"] == rules
    assert any("alert" in rule for group in rules["groups"] for rule in group["rules"])


def test_settings_in_the_environment_are_settings(manifests: Manifests) -> None:
    ours = [each["name"] for each in container_of(manifests)["env"] if each["name"].startswith("GANDER_")]
    assert {name.removeprefix("GANDER_").lower() for name in ours} <= set(ServerSettings.model_fields)
    assert "GANDER_MODEL" in ours


@pytest.mark.slow
def test_the_command_of_a_pod_answers_its_probes_has_its_metrics_and_ends_when_told() -> None:
    manifests = rendered(FOLDER / "cpu")
    container = container_of(manifests)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    here = ["--host", "127.0.0.1", "--port", str(port), "--drain-delay", "0", "--no-standby"]
    environment = os.environ | {each["name"]: each["value"] for each in container["env"]}
    command = [*SERVE, *entrypoint(), *container["args"], *here]
    with subprocess.Popen(command, env=environment, cwd=ROOT) as process:
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE) as client:
                wait_until(lambda: process.poll() is not None or is_open(port), 120)
                for name in ("startupProbe", "readinessProbe", "livenessProbe"):
                    status = client.get(container[name]["httpGet"]["path"]).status_code
                    assert status == 200 or (status == 503 and name != "livenessProbe"), (name, status)
                monitor = yaml.safe_load((FOLDER / "components/monitoring/monitor.yaml").read_text())
                text = client.get(monitor["spec"]["endpoints"][0]["path"]).text
                scale = (FOLDER / "components/keda/scale.yaml").read_text()
                named = set(re.findall(r"\bgander_\w+", scale))
                assert named == {"gander_waiting", "gander_slots_used", "gander_slots"}
                assert all(f"\n{name}{{model_name=" in text for name in named)
                assert metrics_of_rules() <= set(re.findall(r"^# TYPE (\w+) ", text, re.MULTILINE))
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE) == 0


def metrics_of_rules() -> set[str]:
    """Those that the rules read."""
    rules = yaml.safe_load((FOLDER / "components/monitoring/rules.yaml").read_text())
    asked = [rule["expr"] for group in rules["spec"]["groups"] for rule in group["rules"]]
    names = {name for each in asked for name in re.findall(r"(?<![\w:])gander_\w+", each)}
    assert names
    return {re.sub(r"_(bucket|sum|count)$", "", name) for name in names}


def is_open(port: int) -> bool:
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", port)) == 0
