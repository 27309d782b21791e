"""Where a checkpoint's weights go: straight to their device where that can be, else by way of the host's memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import PreTrainedConfig

from decoding.model import weights

DEVICES = {("cpu", True): None, ("cuda", False): None, ("cuda", True): {"": torch.device("cuda")}}


@pytest.mark.parametrize("case", DEVICES, ids=str)
def test_files_are_read_to_the_device_where_transformers_can(
    monkeypatch: pytest.MonkeyPatch, case: tuple[str, bool]
) -> None:
    device, has_accelerate = case
    asked: list[Any] = []

    def load(*_arguments: object, **options: object) -> None:
        asked.append(options["device_map"])
        raise OSError("no such folder")

    monkeypatch.setattr(weights, "is_accelerate_available", lambda: has_accelerate)
    monkeypatch.setattr(weights.AutoModelForCausalLM, "from_pretrained", load)
    with pytest.raises(OSError, match="no such folder"):
        weights.load_weights("folder", PreTrainedConfig(), torch.float32, {}, torch.device(device))
    assert asked == [DEVICES[case]]
