"""A 32B in bfloat16 starts on a GPU of 80 GB: every tensor of its largest step is counted, without numbers in them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from decoding.bench.gpu.cost_model import QWEN3
from decoding.cache.kv_store import KvStore, bytes_per_slot
from decoding.cache.step_tensors import StepBuffers, StepRoom
from decoding.config import EngineConfig
from decoding.core.layer import LayerSpec
from decoding.costs.price import CostCurve
from decoding.engine.limits import Limits, limits_for
from decoding.engine.start import EDITED_BYTES
from decoding.model import memory
from decoding.model.device.graph_runner import BUCKETS, MOST_LOGITS
from decoding.model.device.static_forward import StaticForward
from decoding.model.memory import affordable_slots
from decoding.model.seam import SERVING, Seam, set_implementation
from tests.decoding.engine.test_step_memory import Allocator

pytest.importorskip("triton", reason="Triton is not installed")

from decoding.attention.triton import triton_attention
from decoding.attention.triton.tiles import Tile
from decoding.attention.triton.triton_attention import TritonAttention

META, SHAPE, WIDTH = torch.device("meta"), QWEN3[2], 128
FREE = 79 * 2**30  # of an H100, beside what CUDA takes of it
LONGEST, NODES = 32_768, 64


class Unlaunched:
    """A kernel that is not launched: what is counted is what it is given."""

    def __getitem__(self, _grid: object) -> Any:
        return lambda *_arguments, **_options: None


def spec(index: int) -> LayerSpec:
    return LayerSpec(
        index=index, num_query_heads=SHAPE.heads, num_kv_heads=SHAPE.kv_heads, key_dim=WIDTH, value_dim=WIDTH,
        scaling=WIDTH**-0.5,
    )  # fmt: skip


def most_of_a_step(monkeypatch: pytest.MonkeyPatch, limits: Limits, is_exact: bool) -> int:
    """The most bytes at a time in a forward of the largest bucket, by two of its layers: the others' take their
    place."""
    for name in ("attend_tiles", "merge_ranges", "store_rows"):
        monkeypatch.setattr(triton_attention, name, Unlaunched())
    config = Qwen3Config(
        vocab_size=SHAPE.vocab, hidden_size=SHAPE.width, intermediate_size=SHAPE.inner, num_hidden_layers=2,
        num_attention_heads=SHAPE.heads, num_key_value_heads=SHAPE.kv_heads, head_dim=WIDTH, tie_word_embeddings=False,
    )  # fmt: skip
    with META:
        model = Qwen3ForCausalLM(config).to(torch.bfloat16).eval()
    layers = [(each.self_attn, spec(index)) for index, each in enumerate(model.model.layers)]
    specs = [each for _, each in layers]
    attention = TritonAttention(specs, torch.bfloat16, META, [Tile(64, 64, 4, 3)] * 2, is_exact)
    set_implementation(model, SERVING)
    num_rows, most_keys = limits.max_batch_rows, LONGEST + NODES
    room = StepRoom(num_rows, min(num_rows, MOST_LOGITS), 0, 0, most_keys, attention.most_work(num_rows, most_keys))
    step = StepBuffers(KvStore(specs, 8, torch.bfloat16, META), room).view(num_rows)
    meter = Allocator()
    meter.start()
    logits_LV = StaticForward(model, Seam(layers, attention), {}).run(step)
    most = meter.stop()
    assert logits_LV.shape == (room.logits, SHAPE.vocab)
    return most


@pytest.mark.parametrize("is_exact", [False, True])
def test_a_32b_starts_on_80_gb(monkeypatch: pytest.MonkeyPatch, is_exact: bool) -> None:
    config = EngineConfig(exact=is_exact)
    limits = limits_for(config, CostCurve(base=1.0, token=0.001, key=0.0), "cuda", 10**6)
    assert limits.max_batch_rows <= BUCKETS[-1]
    assert limits.max_logits <= MOST_LOGITS
    layer = 2 * SHAPE.width * WIDTH * (SHAPE.heads + SHAPE.kv_heads) + 3 * SHAPE.width * SHAPE.inner
    weights = 2 * (SHAPE.layers * layer + 2 * SHAPE.vocab * SHAPE.width)
    assert weights > 65e9
    step = most_of_a_step(monkeypatch, limits, is_exact)
    logits = limits.max_logits * SHAPE.vocab
    needed = 2 * step + 4 * logits + EDITED_BYTES * logits  # before a capture and in it; its results; edited ones
    monkeypatch.setattr(memory, "free_bytes", lambda _: FREE - weights)
    slot_bytes = SHAPE.layers * bytes_per_slot([spec(0)], torch.bfloat16)
    slots = affordable_slots(config, torch.device("cuda"), slot_bytes, step_bytes=needed)
    assert slots > LONGEST + NODES, f"{step / 2**20:.0f} MiB a step, {needed / 2**30:.1f} GiB needed, {slots} slots"
    left = FREE - weights - needed - slots * slot_bytes
    assert left > 2**30, "for what else is allocated while it serves"
