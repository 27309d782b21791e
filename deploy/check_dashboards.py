"""Checks every query of every dashboard, and every rule, on a real Prometheus that scrapes a real server under load.

    python -m deploy.check_dashboards [--seconds 25] [--picture docs/dashboard.png]

A query fails if it is refused, or returns nothing or only NaN; a rule fails if it is not healthy, records nothing or
names a metric that does not exist. The exit status is 1 if one fails. Needs Debian's `prometheus`.
"""

from __future__ import annotations

import argparse
import math
import re
import shutil
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deploy.monitoring.live import SCRAPE_SECONDS, Prometheus, Series, running_prometheus
from deploy.monitoring.load import SERVER_FLAGS, run_load
from deploy.monitoring.queries import read_dashboards, resolve, targets_of, variables
from server.bench.started_servers import running_gander

METRIC_NAME = re.compile(r"\b(?:gander_\w+|vllm:\w+|\w+:gander_\w+:\w+|up)\b")


@dataclass(frozen=True, slots=True)
class Live:
    """A stack after its load. start, end: the time of the load, in seconds since 1970; asked: what the load asked."""

    prometheus: Prometheus
    start: float
    end: float
    asked: Counter[str]


@dataclass(frozen=True, slots=True)
class Verdict:
    """problem: None for a query that returned numbers; found: what it returned."""

    name: str
    expr: str
    found: str = ""
    problem: str | None = None


@contextmanager
def loaded_stack(seconds: float) -> Iterator[Live]:
    """Run a server and a Prometheus. The block begins after `seconds` of load and the scrapes that follow it."""
    with running_gander(SERVER_FLAGS) as url, running_prometheus(url.removeprefix("http://")) as prometheus:
        time.sleep(2 * SCRAPE_SECONDS)  # a counter's increase can only be seen from a scrape before it
        start = time.time()
        asked = run_load(url, seconds)
        end = time.time()
        time.sleep(2 * SCRAPE_SECONDS)
        yield Live(prometheus, start, end, asked)


def check_dashboard(dashboard: Mapping[str, Any], live: Live) -> list[Verdict]:
    try:
        values = variables(dashboard, live.prometheus, live.end - live.start)
    except ValueError as error:
        return [Verdict(f"{dashboard['title']} / variables", "", problem=str(error))]
    verdicts = []
    for target in targets_of(dashboard):
        start = live.end if target.is_instant else live.start
        verdicts.append(_check_query(target.name, target.expr, values, live.prometheus, (start, live.end)))
    return verdicts


def check_rules(live: Live) -> list[Verdict]:
    verdicts = []
    for rule in live.prometheus.rules():
        name = f"rule {rule['name']} {rule.get('labels', {}).get('quantile', '')}".strip()
        if rule["health"] != "ok":
            verdicts.append(Verdict(name, rule["query"], problem=f"{rule['health']}: {rule.get('lastError', '')}"))
            continue
        is_recording = rule["type"] == "recording"
        names = {_recorded(rule)} if is_recording else set(METRIC_NAME.findall(rule["query"]))
        checks = [_check_query(name, each, {}, live.prometheus, (live.start, live.end)) for each in sorted(names)]
        faults = [f"{check.expr}: {check.problem}" for check in checks if check.problem]
        found = f"{rule['type']}, {checks[0].found}" if is_recording else f"alert, {rule['state']}"
        verdicts.append(Verdict(name, rule["query"], found, "; ".join(faults) or None))
    return verdicts


def _recorded(rule: Mapping[str, Any]) -> str:
    """The selector of the series that a recording rule writes."""
    labels = ",".join(f'{name}="{value}"' for name, value in rule.get("labels", {}).items())
    return f"{rule['name']}{{{labels}}}"


def _check_query(
    name: str, text: str, values: Mapping[str, str], prometheus: Prometheus, span: tuple[float, float]
) -> Verdict:
    try:
        expr = resolve(text, values)
        series = prometheus.query_range(expr, *span)
    except ValueError as error:
        return Verdict(name, text, problem=str(error))
    numbers = _numbers(series)
    if not numbers:
        return Verdict(name, expr, problem="only NaN" if series else "nothing")
    return Verdict(name, expr, f"{len(series)} series, {min(numbers):.4g} to {max(numbers):.4g}")


def _numbers(series: Sequence[Series]) -> list[float]:
    return [value for each in series for _, value in each.points if not math.isnan(value)]


def report(verdicts: Sequence[Verdict]) -> str:
    """A line for each verdict, with the query where it failed."""
    lines = []
    for verdict in verdicts:
        lines.append(f"{'FAULT' if verdict.problem else 'ok   '} {verdict.name}: {verdict.problem or verdict.found}")
        if verdict.problem:
            lines.append(f"      {verdict.expr}")
    num_faults = sum(verdict.problem is not None for verdict in verdicts)
    return "\n".join([*lines, f"{len(verdicts)} queries and rules, {num_faults} faults"])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Check every dashboard query and rule against a server under load.")
    parser.add_argument("--seconds", type=float, default=25.0, help="how long the load lasts")
    parser.add_argument("--picture", type=Path, help="draw the main dashboard into this file")
    options = parser.parse_args(arguments)
    if shutil.which("prometheus") is None:
        sys.stderr.write("Prometheus is missing: install the Debian package `prometheus`.\n")
        return 2
    dashboards = read_dashboards()
    with loaded_stack(options.seconds) as live:
        verdicts = [verdict for dashboard in dashboards for verdict in check_dashboard(dashboard, live)]
        verdicts += check_rules(live)
        sys.stdout.write(report(verdicts) + "\n")
        if options.picture:
            from deploy.monitoring.picture import draw_dashboard

            main_dashboard = next(each for each in dashboards if each["uid"] == "gander-speedup")
            draw_dashboard(main_dashboard, live.prometheus, (live.start, live.end), options.picture)
    return int(any(verdict.problem for verdict in verdicts))


if __name__ == "__main__":
    sys.exit(main())
