"""Writes dashboards/*.json from the panels in speedup.py and server.py: `python -m deploy.grafana.make_dashboards`.

Owns Grafana's JSON (schemaVersion 39, Grafana 11) and where panels lie; knows nothing of metrics. The files are
checked in, and a test fails when they are not what this script writes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from string import ascii_uppercase
from typing import Any

from deploy.grafana import server, speedup
from deploy.grafana.panel import INSTANCE, Panel, Section

FOLDER = Path(__file__).parent / "dashboards"
SCHEMA_VERSION = 39
COLUMNS = 24
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
ALL = {"selected": True, "text": "All", "value": "$__all"}
GREEN, RED = "green", "red"

Json = dict[str, Any]


def dashboards() -> dict[str, Json]:
    """The dashboards by file name."""
    links = {"gander-speedup": "gander-server", "gander-server": "gander-speedup"}
    titles = {"gander-speedup": "Gander: speedup", "gander-server": "Gander: server"}
    sections = {"gander-speedup": speedup.SECTIONS, "gander-server": server.SECTIONS}
    return {
        f"{uid}.json": _dashboard(uid, titles[uid], sections[uid], links[uid], titles[links[uid]]) for uid in titles
    }


def _dashboard(uid: str, title: str, sections: Sequence[Section], other: str, other_title: str) -> Json:
    link = {"title": other_title, "type": "link", "url": f"/d/{other}", "icon": "dashboard", "tooltip": ""}
    link_options = {"asDropdown": False, "includeVars": True, "keepTime": True, "targetBlank": False, "tags": []}
    return {
        "uid": uid,
        "title": title,
        "tags": ["gander"],
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "timezone": "browser",
        "annotations": {"list": []},
        "links": [link | link_options],
        "templating": {"list": _variables()},
        "panels": list(_panels(sections)),
    }


def _variables() -> list[Json]:
    def query(name: str, label: str, text: str, **more: Any) -> Json:
        base = {"type": "query", "name": name, "label": label, "query": text, "datasource": DATASOURCE}
        return base | {"refresh": 2, "sort": 1, "hide": 0, "regex": ""} | more

    several = {"multi": True, "includeAll": True, "current": ALL}
    forwards = f"gander_target_forwards_total{{{INSTANCE}}}"
    return [
        {"type": "datasource", "name": "datasource", "label": "Data source", "query": "prometheus", "hide": 0},
        query("model", "Model", "label_values(gander_info, model)"),
        query("instance", "Instance", 'label_values(gander_info{model="$model"}, instance)', **several),
        query("method", "Method", f"label_values({forwards}, method)", **several),
    ]


def _panels(sections: Sequence[Section]) -> Iterator[Json]:
    """The panels: sections below each other, and in each from left to right, on a new line where one does not fit."""
    panel_id = x = y = line = 0
    for section in sections:
        x, y, line, panel_id = 0, y + line, 0, panel_id + 1
        place = {"x": 0, "y": y, "w": COLUMNS, "h": 1}
        yield {
            "id": panel_id,
            "type": "row",
            "title": section.title,
            "collapsed": False,
            "gridPos": place,
            "panels": [],
        }
        y += 1
        for panel in section.panels:
            if x + panel.width > COLUMNS:
                x, y, line = 0, y + line, 0
            panel_id += 1
            yield _panel(panel, panel_id, {"x": x, "y": y, "w": panel.width, "h": panel.height})
            x, line = x + panel.width, max(line, panel.height)


def _panel(panel: Panel, panel_id: int, place: Json) -> Json:
    defaults: Json = {"unit": panel.unit, "color": {"mode": "palette-classic"}, "thresholds": _thresholds(panel)}
    if panel.kind != "heatmap":
        defaults["min"] = 0
    if panel.limit is not None:
        defaults["max"] = panel.limit
    if panel.decimals is not None:
        defaults["decimals"] = panel.decimals
    if panel.kind == "timeseries":
        defaults["custom"] = _lines(panel)
    if panel.kind == "stat":
        defaults["color"] = {"mode": "thresholds"}
    if panel.kind == "bargauge":
        defaults["color"] = {"mode": "continuous-BlPu"}
    return {
        "id": panel_id,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "gridPos": place,
        "datasource": DATASOURCE,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": _options(panel),
        "targets": [_target(panel, *each) for each in zip(ascii_uppercase, panel.queries.items(), strict=False)],
    }


def _target(panel: Panel, ref_id: str, query: tuple[str, str]) -> Json:
    legend, expr = query
    return {
        "refId": ref_id,
        "datasource": DATASOURCE,
        "expr": expr,
        "legendFormat": legend,
        "format": "heatmap" if panel.kind == "heatmap" else "time_series",
        "instant": panel.is_instant,
        "range": not panel.is_instant,
        "editorMode": "code",
    }


def _thresholds(panel: Panel) -> Json:
    first = {"color": GREEN if panel.floor is None else RED, "value": None}
    return {
        "mode": "absolute",
        "steps": [first, *([] if panel.floor is None else [{"color": GREEN, "value": panel.floor}])],
    }


def _lines(panel: Panel) -> Json:
    return {
        "drawStyle": "line",
        "lineWidth": 2,
        "fillOpacity": 50 if panel.is_stacked else 8,
        "showPoints": "never",
        "spanNulls": False,
        "stacking": {"group": "A", "mode": "normal" if panel.is_stacked else "none"},
        "thresholdsStyle": {"mode": "off" if panel.floor is None else "dashed"},
    }


def _options(panel: Panel) -> Json:
    """A panel's options: all that Grafana's schema asks for, also those with defaults."""
    reduce = {"calcs": ["lastNotNull"], "fields": "", "values": False}
    legend = {"showLegend": True, "displayMode": "list", "placement": "bottom", "calcs": []}
    match panel.kind:
        case "stat":
            return {
                "reduceOptions": reduce,
                "textMode": "name" if panel.is_name else "auto",
                "graphMode": "none" if panel.is_instant or panel.is_name else "area",
                "colorMode": "value",
                "justifyMode": "auto",
                "orientation": "auto",
                "wideLayout": True,
                "showPercentChange": False,
                "percentChangeColorMode": "standard",
            }
        case "bargauge":
            return {
                "reduceOptions": reduce,
                "displayMode": "gradient",
                "orientation": "horizontal",
                "showUnfilled": True,
                "valueMode": "color",
                "namePlacement": "auto",
                "sizing": "auto",
                "minVizWidth": 8,
                "minVizHeight": 12,
                "maxVizHeight": 300,
                "legend": legend | {"showLegend": False},
            }
        case "heatmap":
            colors = {"mode": "scheme", "scheme": "Viridis", "steps": 64, "fill": "dark-orange", "exponent": 0.5}
            return {
                "calculate": False,
                "cellGap": 1,
                "showValue": "never",
                "color": colors | {"reverse": False},
                "exemplars": {"color": "orange"},
                "filterValues": {"le": 1e-9},
                "legend": {"show": True},
                "rowsFrame": {"layout": "auto"},
                "tooltip": {"mode": "single", "yHistogram": False, "showColorScale": True},
                "yAxis": {"axisPlacement": "left", "unit": panel.unit, "reverse": False},
            }
        case "timeseries":
            return {"legend": legend, "tooltip": {"mode": "multi", "sort": "desc"}}


def as_text(dashboard: Json) -> str:
    return json.dumps(dashboard, indent=2, ensure_ascii=False) + "\n"


def main() -> None:
    for name, dashboard in dashboards().items():
        (FOLDER / name).write_text(as_text(dashboard), encoding="utf-8")


if __name__ == "__main__":
    main()
