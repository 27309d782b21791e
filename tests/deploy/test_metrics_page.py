"""docs/metrics.md tells of exactly the metrics a server exports, with their types and labels."""

import re
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from deploy.monitoring.live import ROOT
from server.config import ServerSettings
from tests.server.servers import make_model_folder, running_server, wait_until

PAGE = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
DEPLOYMENT = (ROOT / "docs" / "deployment.md").read_text(encoding="utf-8")
OF_THE_SERVER = ("gander_http_requests_total", "gander_errors_total")
ROW = re.compile(r"^\| `((?:gander|vllm|process)[\w:]+)` \| (gauge|counter|histogram) \|([\w, ]*)\| \S.* \|$", re.M)


def documented() -> dict[str, tuple[str, frozenset[str]]]:
    rows = ROW.findall(PAGE)
    assert len({name for name, _, _ in rows}) == len(rows)
    return {name: (kind, of_all(name) | set(re.findall(r"\w+", labels))) for name, kind, labels in rows}


def of_all(name: str) -> frozenset[str]:
    """The labels of all of a model's metrics, which the page tells once."""
    if name.startswith("vllm:"):
        return frozenset({"model_name", "engine"})
    return frozenset({"model_name"} if name.startswith("gander_") and name not in OF_THE_SERVER else ())


def exported(text: str) -> dict[str, tuple[str, frozenset[str]]]:
    found = {}
    for family in text_string_to_metric_families(text):
        name = f"{family.name}_total" if family.type == "counter" else family.name
        labels = {label for sample in family.samples for label in sample.labels}
        found[name] = (family.type, frozenset(labels - {"le"}))
    return {name: entry for name, entry in found.items() if not name.endswith("_created")}


def test_the_page_and_the_server_name_the_same_metrics(tmp_path: Path) -> None:
    settings = ServerSettings(model=str(make_model_folder(tmp_path / "toy")), drain_seconds=1)
    with running_server(settings) as server:
        server.post(prompt="abc", max_tokens=30)
        wait_until(lambda: server.metric("gander_emitted_tokens_total"))
        assert exported(server.get("/metrics").text) == documented()


def test_every_rule_and_alert_is_on_a_page() -> None:
    rules = (ROOT / "deploy" / "prometheus" / "rules" / "gander.yml").read_text()
    for name in re.findall(r"- (?:record|alert): (\S+)", rules):
        assert f"| `{name}` |" in PAGE + DEPLOYMENT


def test_the_picture_is_there_and_small() -> None:
    picture = ROOT / "docs" / "dashboard.png"
    assert "](dashboard.png)" in PAGE
    assert picture.stat().st_size < 400_000
