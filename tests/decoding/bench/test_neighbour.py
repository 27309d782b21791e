"""The busy process lives as long as its measurement, and every figure is in the table."""

from __future__ import annotations

import pytest

from decoding.bench.neighbour import measure_neighbour, render_neighbour
from decoding.config import EngineConfig
from decoding.engine.start import start_engine
from decoding.model.target_model import TargetModel
from tests.models import tiny


@pytest.mark.slow
def test_a_models_plain_steps_are_measured_with_and_without_a_neighbour() -> None:
    config = EngineConfig(max_model_len=256, kv_slots=1024, threads=1)
    engine = start_engine(TargetModel.from_model(tiny("llama"), config), config)
    result = measure_neighbour("tiny", "by size", engine, seconds=0.05)
    assert min(result.quiet, result.busy, result.settled) > 0
    assert result.threads == (1, 1)
    table = render_neighbour([result])
    assert "| tiny | by size |" in table
    assert f"{result.settled / result.quiet:.2f}" in table
