"""The dashboards as files: what the script makes, and in a form that Grafana takes."""

import re
from itertools import combinations
from pathlib import Path
from typing import Any, cast

import pytest

from deploy.grafana.make_dashboards import COLUMNS, FOLDER, as_text, dashboards
from deploy.monitoring.live import Prometheus, Series
from deploy.monitoring.picture import draw_dashboard
from deploy.monitoring.queries import VARIABLE, read_dashboards, resolve, targets_of

BUILT_IN = {"__rate_interval", "__range", "datasource"}
KINDS = {"timeseries", "stat", "heatmap", "bargauge"}
ALL = read_dashboards()
PANELS = [(each["title"], panel) for each in ALL for panel in each["panels"] if panel["type"] != "row"]


def test_the_files_are_what_the_script_makes() -> None:
    made = {name: as_text(dashboard) for name, dashboard in dashboards().items()}
    assert made == {path.name: path.read_text(encoding="utf-8") for path in FOLDER.iterdir()}


@pytest.mark.parametrize("dashboard", ALL, ids=lambda each: each["uid"])
def test_a_dashboard_has_what_grafana_needs(dashboard: dict[str, Any]) -> None:
    assert dashboard["schemaVersion"] >= 39
    assert 8 <= len(dashboard["uid"]) <= 40
    assert [each["name"] for each in dashboard["templating"]["list"]] == ["datasource", "model", "instance", "method"]
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(ids)) == len(ids)
    titles = [panel["title"] for panel in dashboard["panels"] if panel["type"] != "row"]
    assert len(set(titles)) == len(titles)


@pytest.mark.parametrize("dashboard", ALL, ids=lambda each: each["uid"])
def test_panels_lie_within_the_grid_and_beside_each_other(dashboard: dict[str, Any]) -> None:
    cells: dict[int, set[tuple[int, int]]] = {}
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= COLUMNS
        columns, rows = range(place["x"], place["x"] + place["w"]), range(place["y"], place["y"] + place["h"])
        cells[panel["id"]] = {(x, y) for x in columns for y in rows}
    for one, other in combinations(cells.values(), 2):
        assert not one & other


@pytest.mark.parametrize(("title", "panel"), PANELS, ids=lambda each: each if isinstance(each, str) else each["title"])
def test_a_panel_explains_itself(title: str, panel: dict[str, Any]) -> None:
    assert panel["type"] in KINDS, title
    assert re.fullmatch(r"[A-Z].{20,}\.", panel["description"])
    assert panel["fieldConfig"]["defaults"]["unit"]
    assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
    refs = [target["refId"] for target in panel["targets"]]
    assert refs == sorted(set(refs))
    for target in panel["targets"]:
        assert target["instant"] != target["range"]
        assert (target["format"] == "heatmap") == (panel["type"] == "heatmap")


@pytest.mark.parametrize("dashboard", ALL, ids=lambda each: each["uid"])
def test_queries_name_known_variables_and_no_address(dashboard: dict[str, Any]) -> None:
    known = BUILT_IN | {variable["name"] for variable in dashboard["templating"]["list"]}
    for target in targets_of(dashboard):
        used = {match[1] or match[2] for match in VARIABLE.finditer(target.expr)}
        assert "instance" in used, target.name
        assert used <= known, target.name


def test_a_variable_that_is_not_there_is_an_error() -> None:
    assert resolve("rate(a[$__range]) ${b}", {"__range": "9s", "b": "2"}) == "rate(a[9s]) 2"
    with pytest.raises(ValueError, match=r"unknown variable \$c"):
        resolve("a$c", {"b": "2"})


class ManySeries:
    """A Prometheus whose every query has more series than a legend has room for."""

    def label_values(self, _label: str, _match: str) -> list[str]:
        return ["one"]

    def query_range(self, _expr: str, start: float, end: float, _step: float) -> list[Series]:
        labels = (
            {"method": f"a method of a long name, number {number}", "le": str(number + 1)} for number in range(90)
        )
        return [Series(each, [(start, 1.0), (end, 2.0)]) for each in labels]


def test_panels_of_many_series_are_drawn(tmp_path: Path) -> None:
    dashboard = next(each for each in ALL if each["uid"] == "gander-speedup")
    draw_dashboard(dashboard, cast(Prometheus, ManySeries()), (0.0, 30.0), tmp_path / "dashboard.png")
    assert (tmp_path / "dashboard.png").stat().st_size > 50_000
