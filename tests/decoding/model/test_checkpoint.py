"""What is loaded, where and in which numbers is settled before anything is loaded, or refused with a sentence."""

from __future__ import annotations

import pytest
import torch

from decoding.config import EngineConfig
from decoding.errors import ConfigError
from decoding.model.checkpoint import resolve


def test_auto_is_float32_and_exact_on_a_cpu() -> None:
    config, _ = resolve(EngineConfig(device="cpu"))
    assert (config.device, config.dtype, config.attention) == ("cpu", "float32", "exact")


def test_a_device_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="'toaster' is not a device"):
        resolve(EngineConfig(device="toaster"))


def test_a_device_that_is_not_there_is_refused_before_a_worker_dies_of_it() -> None:
    missing = f"cuda:{torch.cuda.device_count()}"
    with pytest.raises(ConfigError, match=f"'{missing}' is not there"):
        resolve(EngineConfig(device=missing))
