"""The perplexity of a text by the type of keys and values: that of the model itself, and who else costs how much."""

from __future__ import annotations

import sys
from math import exp

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from decoding.bench import perplexity
from decoding.bench.perplexity import CHUNK, score
from decoding.config import EngineConfig
from decoding.kernels.cpu.attention.formats import FORMATS
from decoding.model.target_model import TargetModel
from tests.models import VOCAB_SIZE, tiny


def test_a_text_is_scored_over_each_type_as_the_model_scores_it() -> None:
    config = EngineConfig(max_model_len=CHUNK + 200, threads=1)
    model = TargetModel.from_model(tiny("llama", max_position_embeddings=1024), config)
    draws = np.random.default_rng(0).integers(3, VOCAB_SIZE, (2, CHUNK + 100))  # the second chunk is short
    nats = 0.0
    for window in draws:
        with torch.inference_mode():
            logits_1TV = tiny("llama", max_position_embeddings=1024)(torch.from_numpy(window)[None]).logits
        nats += float(cross_entropy(logits_1TV[0, :-1], torch.from_numpy(window[1:]), reduction="sum"))
    page = score(model, draws.tolist(), FORMATS)
    num_scored = 2 * (CHUNK + 99)
    rows = [line.strip("| ").split(" | ") for line in page.splitlines()[4:]]
    assert page.startswith(f"{num_scored:,} tokens scored\n")
    assert [row[0] for row in rows] == list(FORMATS)
    assert float(rows[0][2]) == pytest.approx(exp(nats / num_scored), rel=1e-4)
    more = {row[0]: float(row[3].removesuffix("%")) for row in rows}
    assert more["float32"] == 0.0
    assert all(-1.0 < each < 1.0 for each in more.values())
    assert len({row[2] + row[3] for row in rows}) > 2, "types make no difference"
    assert int(rows[0][1].replace(",", "")) == 2 * int(rows[1][1].replace(",", "")) == model.bytes_per_slot


def test_an_unknown_type_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["perplexity", "--model", "m", "--text", "t", "--kv-dtypes", "float32,int3"]
    monkeypatch.setattr(sys, "argv", argv)
    with pytest.raises(SystemExit):
        perplexity.main()
    assert "--kv-dtypes float32,int3: known are float32, bfloat16, float16, int8, fp8" in capsys.readouterr().err
