"""The benchmark of the host runs on any machine and ends with its figures."""

from __future__ import annotations

import json

import pytest

from decoding.bench.host.__main__ import NUM_NODES, WAYS, main, measure
from decoding.core.stats import PHASES


def test_the_hosts_part_of_a_step_is_told_by_requests_and_phase(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--requests", "1,3", "--steps", "2", "--json"]) == 0
    *lines, last = capsys.readouterr().out.splitlines()
    found = json.loads(last)
    assert found.keys() == {"plain", "drafted"}
    assert all(each.keys() == {"1", "3"} and min(each.values()) > 0 for each in found.values())
    assert [line.split()[:2] for line in lines[-4:]] == [[n, way] for way in ("plain", "drafted") for n in ("1", "3")]
    assert all(phase in lines[-5] for phase in PHASES)


def test_a_drafted_step_runs_trees_and_a_plain_one_roots() -> None:
    plain, drafted = (measure(2, WAYS[way], 4) for way in ("plain", "drafted"))
    assert plain.rows == 2
    assert 2 < drafted.rows <= 2 * (1 + NUM_NODES)
    assert drafted.phases["draft"] > 0
