"""Every query of every dashboard and every rule, on a real Prometheus that scrapes a real server under a short load."""

from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from deploy.check_dashboards import Live, Verdict, check_dashboard, check_rules, loaded_stack, main, report
from deploy.monitoring.load import METHODS
from deploy.monitoring.picture import draw_dashboard
from deploy.monitoring.queries import read_dashboards
from tests.programs import program

pytestmark = pytest.mark.slow
LOAD_SECONDS = 16.0


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    program("prometheus", "prometheus")
    with loaded_stack(LOAD_SECONDS) as stack:
        yield stack


def faults(verdicts: list[Verdict]) -> list[str]:
    return [verdict.name for verdict in verdicts if verdict.problem]


def seeded(old: str, new: str) -> dict[str, Any]:
    """The speedup dashboard with a fault in the panel "Speedup"."""
    dashboard = deepcopy(next(each for each in read_dashboards() if each["uid"] == "gander-speedup"))
    target = dashboard["panels"][1]["targets"][0]
    assert old in target["expr"]
    target["expr"] = target["expr"].replace(old, new)
    return dashboard


def test_without_prometheus_the_script_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "")
    assert main([]) == 2
    assert "Debian package `prometheus`" in capsys.readouterr().err


def test_the_load_had_every_method(live: Live) -> None:
    for method in METHODS:
        for kind in ("completion", "stream", "chat", "samples"):
            assert live.asked[f"{method} {kind}"] >= 1
    assert live.asked["error unsupported_parameter"] >= 1
    assert live.asked["client left"] >= 1


@pytest.mark.parametrize("dashboard", read_dashboards(), ids=lambda each: each["uid"])
def test_every_query_of_a_dashboard_answers(live: Live, dashboard: dict[str, Any]) -> None:
    verdicts = check_dashboard(dashboard, live)
    assert len(verdicts) >= 20
    assert not faults(verdicts), report(verdicts)


def test_every_rule_is_healthy_and_records_something(live: Live) -> None:
    verdicts = check_rules(live)
    assert len(verdicts) == 19
    assert not faults(verdicts), report(verdicts)


def test_a_renamed_metric_is_a_fault(live: Live) -> None:
    verdicts = check_dashboard(seeded("gander_plain_seconds_total", "gander_simple_seconds_total"), live)
    assert faults(verdicts) == ["Gander: speedup / Speedup / A"]
    assert "nothing" in report(verdicts)


def test_a_query_that_prometheus_cannot_read_is_a_fault(live: Live) -> None:
    verdicts = check_dashboard(seeded("sum (", "sum ((("), live)
    assert faults(verdicts) == ["Gander: speedup / Speedup / A"]
    assert "parse error" in report(verdicts)


def test_numbers_that_are_none_are_a_fault(live: Live) -> None:
    verdicts = check_dashboard(seeded("sum (rate(gander_plain", "0 * sum (rate(gander_plain"), live)
    assert not faults(verdicts)
    verdicts = check_dashboard(seeded("sum (rate(gander_plain", "(0 / 0) * sum (rate(gander_plain"), live)
    assert "only NaN" in report(verdicts)


def test_a_variable_without_values_is_a_fault(live: Live) -> None:
    dashboard = deepcopy(read_dashboards()[0])
    dashboard["templating"]["list"][1]["query"] = "label_values(gander_information, model)"
    assert [verdict.problem for verdict in check_dashboard(dashboard, live)] == ["the variable $model has no values"]


@pytest.mark.parametrize("dashboard", read_dashboards(), ids=lambda each: each["uid"])
def test_a_dashboard_can_be_drawn(live: Live, dashboard: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "dashboard.png"
    draw_dashboard(dashboard, live.prometheus, (live.start, live.end), path)
    assert path.stat().st_size > 50_000
