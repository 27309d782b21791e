"""The queries of the checked-in dashboards as Grafana would send them, with values put in for variables.

Reads Grafana's JSON, and asks Prometheus for a variable's values; knows nothing of verdicts or pictures.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deploy.monitoring.live import SCRAPE_SECONDS, Prometheus

FOLDER = Path(__file__).parents[1] / "grafana" / "dashboards"
VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
LABEL_VALUES = re.compile(r"label_values\((.+), (\w+)\)")


@dataclass(frozen=True, slots=True)
class Target:
    """One query of a panel, before variables are put in. panel: its JSON."""

    dashboard: str
    panel: Mapping[str, Any]
    ref_id: str
    expr: str
    legend: str
    is_instant: bool

    @property
    def name(self) -> str:
        return f"{self.dashboard} / {self.panel['title']} / {self.ref_id}"


def read_dashboards(folder: Path = FOLDER) -> list[dict[str, Any]]:
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))]


def targets_of(dashboard: Mapping[str, Any]) -> list[Target]:
    return [
        Target(dashboard["title"], panel, target["refId"], target["expr"], target["legendFormat"], target["instant"])
        for panel in dashboard["panels"]
        for target in panel.get("targets", ())
    ]


def resolve(text: str, values: Mapping[str, str]) -> str:
    """Put values in for variables. Raises ValueError for an unknown one."""

    def value(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        if name not in values:
            raise ValueError(f"unknown variable ${name}")
        return values[name]

    return VARIABLE.sub(value, text)


def variables(dashboard: Mapping[str, Any], prometheus: Prometheus, span_seconds: float) -> dict[str, str]:
    """The value of every variable, "All" where there can be several. Raises ValueError for one without values."""
    values = {"__rate_interval": f"{4 * SCRAPE_SECONDS}s", "__range": f"{span_seconds:.0f}s"}
    for variable in dashboard["templating"]["list"]:
        if variable["type"] != "query":
            continue
        match = LABEL_VALUES.fullmatch(variable["query"])
        assert match is not None, variable["query"]
        found = prometheus.label_values(match[2], resolve(match[1], values))
        if not found:
            raise ValueError(f"the variable ${variable['name']} has no values")
        values[variable["name"]] = _all_of(found) if variable.get("includeAll") else found[0]
    return values


def _all_of(values: Sequence[str]) -> str:
    """Several values as Grafana writes them inside a PromQL string: a regular expression with doubled backslashes."""
    return f"({'|'.join(re.escape(value) for value in values)})".replace("\\", "\\\\")
