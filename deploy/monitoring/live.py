"""Runs a real Prometheus on 127.0.0.1 while a block runs, and asks it.

Invariant: when the block ends, however it ends, its process and its temporary folder are gone.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from server.bench.started_servers import free_port, running

ROOT = Path(__file__).parents[2]
CONFIG = ROOT / "deploy" / "prometheus"
SERVICE = "gander:8000"  # what the checked-in configuration scrapes
SCRAPE_SECONDS = 2


@dataclass(frozen=True, slots=True)
class Series:
    labels: dict[str, str]
    points: list[tuple[float, float]]  # (seconds since 1970, value)


@dataclass(frozen=True, slots=True)
class Prometheus:
    """Prometheus's HTTP API. `ask` raises ValueError with Prometheus's message for a query that it refuses."""

    http: httpx.Client

    def query_range(self, expr: str, start: float, end: float, step: float = SCRAPE_SECONDS) -> list[Series]:
        data = self.ask("/api/v1/query_range", query=expr, start=start, end=end, step=step)
        return [
            Series(series["metric"], [(moment, float(value)) for moment, value in series["values"]])
            for series in data["result"]
        ]

    def label_values(self, label: str, selector: str) -> list[str]:
        values: list[str] = self.ask(f"/api/v1/label/{label}/values", **{"match[]": selector})
        return values

    def rules(self) -> list[dict[str, Any]]:
        return [rule for group in self.ask("/api/v1/rules")["groups"] for rule in group["rules"]]

    def ask(self, path: str, **parameters: Any) -> Any:
        body = self.http.get(path, params=parameters).json()
        if body["status"] != "success":
            raise ValueError(body["error"])
        return body["data"]


@contextmanager
def running_prometheus(target: str, config: Path = CONFIG) -> Iterator[Prometheus]:
    """Start a Prometheus with the checked-in configuration and rules at shorter intervals. It scrapes `target`, and
    labels it with the server's name among the compose services."""
    url = f"http://127.0.0.1:{free_port()}"
    with tempfile.TemporaryDirectory(prefix="gander-prometheus-") as name:
        folder = Path(name)
        shutil.copytree(config / "rules", folder / "rules")
        (folder / "prometheus.yml").write_text(quick_config((config / "prometheus.yml").read_text(), target))
        command = [
            shutil.which("prometheus") or "prometheus",
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address={url.removeprefix('http://')}",
            "--log.level=warn",
        ]
        with running(command, f"{url}/-/ready"), httpx.Client(base_url=url, timeout=30) as http:
            yield Prometheus(http)


def quick_config(text: str, target: str) -> str:
    """The checked-in configuration with shorter intervals and another address to scrape."""
    text, num_intervals = re.subn(r"(scrape|evaluation)_interval: 5s", rf"\1_interval: {SCRAPE_SECONDS}s", text)
    quick = f'["{target}"]\n        labels: {{instance: "{SERVICE}"}}'
    text, num_targets = re.subn(re.escape(f'["{SERVICE}"]'), quick, text)
    assert (num_intervals, num_targets) == (2, 1), text
    return text
