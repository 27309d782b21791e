"""One engine with the bundled model for the tests that need a model which can write."""

from __future__ import annotations

import pytest

from decoding.config import EngineConfig
from decoding.engine.engine import Engine


@pytest.fixture(scope="session")
def gosling() -> Engine:
    return Engine.load(EngineConfig(max_model_len=1500, kv_slots=12_000, threads=1))
