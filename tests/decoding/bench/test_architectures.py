"""Models of published sizes: their configurations are what is published, and a small one is measured whole."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from decoding.bench.architectures.__main__ import parse, render
from decoding.bench.architectures.drafted import CHANCES
from decoding.bench.architectures.measure import ROWS, Plan, active_parameters, measure
from decoding.bench.architectures.sizes import SIZES, config_of
from decoding.bench.tables.report import Report

MILLIONS = {
    "qwen3.5-0.8b": (752, 752),
    "lfm2-350m": (354, 354),
    "qwen3-30b-a3b": (1313, 147),
    "qwen3-moe-small": (637, 100),
}
LITTLE = {"vocab_size": 256, "hidden_size": 64, "intermediate_size": 64, "num_attention_heads": 4}
SMALL = {  # fields that make a model of each size small
    "lfm2-350m": LITTLE | {"num_key_value_heads": 2, "full_attn_idxs": [1], "block_auto_adjust_ff_dim": False},
    "qwen3.5-0.8b": LITTLE
    | {
        "num_key_value_heads": 2,
        "head_dim": 16,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 2,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
    },
    "qwen3-moe-small": LITTLE
    | {
        "num_key_value_heads": 2,
        "head_dim": 16,
        "moe_intermediate_size": 32,
        "num_experts": 4,
        "num_experts_per_tok": 2,
    },
}
PLAN = Plan(threads=1, rounds=1, clock=time.perf_counter, is_drafted=True, prompt_len=32, read_bytes=1 << 20)


@pytest.mark.parametrize("name", SIZES)
def test_a_model_has_as_many_parameters_as_are_published(name: str) -> None:
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config_of(SIZES[name]))
    parameters, active = MILLIONS[name]
    assert model.num_parameters() == pytest.approx(1e6 * parameters, rel=0.01)
    assert active_parameters(model) == pytest.approx(1e6 * active, rel=0.01)


@pytest.mark.parametrize(
    ("name", "weights"), [("lfm2-350m", "float32"), ("qwen3.5-0.8b", "int4"), ("qwen3-moe-small", "int8")]
)
def test_a_model_is_measured_and_its_row_written(name: str, weights: str, tmp_path: Path) -> None:
    row = measure(name, config_of(SIZES[name], 4, **SMALL[name]), weights, PLAN)  # type: ignore[arg-type]
    assert (row.name, row.weights, row.num_layers) == (name, weights, 4)
    assert row.row_ratios[0] == 1.0
    assert len(row.row_ratios) == len(row.walk_shares) == len(ROWS)
    assert min(row.step_seconds, row.generate_seconds, row.read_seconds, row.prompt_rate) > 0
    has_states = name != "qwen3-moe-small"
    assert (row.state_bytes > 0, row.dense_rate is not None) == (has_states, has_states)
    assert (max(row.walk_shares) > 0) == (name == "qwen3.5-0.8b")
    assert (row.num_active < row.num_parameters) == (not has_states)
    assert len(row.drafted_ratios) == len(CHANCES)
    assert min(row.drafted_ratios) > 0
    Report(tmp_path, "a machine", "a command", "page").write("architectures", render([row]), [row])
    assert f"| {name} | 4 | {weights} |" in (tmp_path / "page.md").read_text()


@pytest.mark.parametrize(
    "bad",
    [
        ["nobody"],
        ["lfm2-350m", "--weights", "int9"],
        ["lfm2-350m", "--rounds", "0"],
    ],
)
def test_options_that_mean_nothing_are_refused(bad: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(bad)
    assert "error:" in capsys.readouterr().err
