"""Quantised checkpoints have the logits of a model whose weights are what their formats say."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from decoding.config import EngineConfig
from decoding.errors import ConfigError
from decoding.model.files.quantized_checkpoint import Shards, is_packed_on_device
from decoding.model.loading import load_model, shards_of
from decoding.weights.linear import num_bytes_in
from tests.models import tiny

Tensors = dict[str, torch.Tensor]
Format = Callable[[torch.Tensor], tuple[Tensors, torch.Tensor]]  # a weight: its tensors, and the weight they mean
IDS = torch.tensor([[5, 9, 4, 120, 77, 3, 44, 45, 46, 130, 8, 9]])
WIDTHS = {"hidden_size": 128, "intermediate_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2}


def integers(weight: torch.Tensor, bits: int, group: int, is_symmetric: bool) -> tuple[torch.Tensor, ...]:
    """Codes [O, I], scales and zero points [O, G]."""
    grouped = weight.view(len(weight), -1, group)
    low, high = grouped.amin(2), grouped.amax(2)
    most = 2**bits - 1
    scales = (2 * torch.maximum(-low, high) if is_symmetric else high - low) / most
    scales = scales.half().float()
    zeros = torch.full_like(scales, 2 ** (bits - 1)) if is_symmetric else (-low / scales).round().clamp(1, most)
    codes = (grouped / scales[..., None] + zeros[..., None]).round().clamp(0, most)
    return codes.view(weight.shape).int(), scales, zeros.int()


def meant(codes: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor, groups: torch.Tensor) -> torch.Tensor:
    return (codes - zeros[:, groups]) * scales[:, groups]


def words(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """The last dimension packed into int32, the first integer lowest."""
    in_word = 32 // bits
    padded = torch.nn.functional.pad(codes, (0, -codes.shape[-1] % in_word)).long().unflatten(-1, (-1, in_word))
    packed = (padded << (bits * torch.arange(in_word))).sum(-1)
    return torch.where(packed >= 2**31, packed - 2**32, packed).int()


def compressed(bits: int, group: int, is_symmetric: bool) -> Format:
    def make(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        codes, scales, zeros = integers(weight, bits, group, is_symmetric)
        tensors = {
            "weight_packed": words(codes, bits),
            "weight_scale": scales.bfloat16(),
            "weight_shape": torch.tensor(weight.shape),
        }
        if not is_symmetric:
            tensors["weight_zero_point"] = words(zeros.t(), bits).t()
        return tensors, meant(codes, scales.bfloat16().float(), zeros, torch.arange(weight.shape[1]) // group)

    return make


def gptq(bits: int, group: int, is_ordered: bool) -> Format:
    def make(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        width = weight.shape[1]
        groups = torch.arange(width) // group
        order = torch.randperm(width, generator=torch.Generator().manual_seed(3)) if is_ordered else torch.arange(width)
        codes, scales, zeros = integers(weight[:, order], bits, group, False)
        back = torch.argsort(order)
        codes, groups = codes[:, back], groups[back]
        tensors = {
            "qweight": words(codes, bits).t(),
            "qzeros": words((zeros - 1).t(), bits),
            "scales": scales.t().half(),
            "g_idx": groups.int(),
            "bias": torch.zeros(len(weight)),
        }
        return tensors, meant(codes, scales, zeros, groups)

    return make


def awq(group: int) -> Format:
    def packed(numbers: torch.Tensor) -> torch.Tensor:
        return words(numbers.unflatten(1, (-1, 8))[..., [0, 2, 4, 6, 1, 3, 5, 7]].flatten(1), 4)

    def make(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        codes, scales, zeros = integers(weight, 4, group, False)
        tensors = {"qweight": packed(codes.t()), "qzeros": packed(zeros.t()), "scales": scales.t().half()}
        return tensors, meant(codes, scales, zeros, torch.arange(weight.shape[1]) // group)

    return make


def float8(scale_name: str, shape: Callable[[torch.Tensor], tuple[int, int]]) -> Format:
    """shape: of the scales of a weight."""

    def make(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        rows, columns = shape(weight)
        blocks = weight.unflatten(0, (rows, -1)).unflatten(2, (columns, -1))
        scales = blocks.abs().amax((1, 3), keepdim=True) / 448
        numbers = (blocks / scales).flatten(2).flatten(0, 1).to(torch.float8_e4m3fn)
        whole = (numbers.float().unflatten(0, (rows, -1)).unflatten(2, (columns, -1)) * scales).flatten(2).flatten(0, 1)
        given = scales.reshape(rows, columns) if rows * columns > 1 else scales.reshape(())
        return {"weight": numbers, scale_name: given}, whole

    return make


def int8(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    scales = weight.abs().amax(1, keepdim=True) / 127
    codes = (weight / scales).round()
    return {"weight": codes.to(torch.int8), "weight_scale": scales}, codes * scales


def int8_with_zero_points(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    codes, scales, zeros = integers(weight, 8, weight.shape[1], False)
    signed = {"weight": codes - 128, "weight_zero_point": zeros - 128}
    tensors = {"weight_scale": scales} | {name: each.to(torch.int8) for name, each in signed.items()}
    return tensors, (codes - zeros) * scales


def in_blocks(weight: torch.Tensor) -> tuple[int, int]:
    return len(weight) // 64, weight.shape[1] // 64


COMPRESSED_BLOCKS = {
    "quant_method": "compressed-tensors",
    "format": "float-quantized",
    "config_groups": {"group_0": {"weights": {"strategy": "block", "block_structure": [64, 64]}}},
}
COMPRESSED = {"quant_method": "compressed-tensors", "format": "pack-quantized"}
FORMATS: dict[str, tuple[dict[str, Any], Format, float]] = {  # with the largest difference of logits
    "W4A16 32": (COMPRESSED, compressed(4, 32, True), 1e-4),
    "W4A16 128": (COMPRESSED, compressed(4, 128, True), 1e-4),
    "W4A16 zero points": (COMPRESSED, compressed(4, 64, False), 1e-4),
    "W8A16": (COMPRESSED, compressed(8, 128, True), 1e-4),
    "GPTQ 32": ({"quant_method": "gptq", "bits": 4}, gptq(4, 32, False), 1e-4),
    "GPTQ 128 8 bits": ({"quant_method": "gptq", "bits": 8}, gptq(8, 128, False), 1e-4),
    "GPTQ act-order": ({"quant_method": "gptq", "bits": 4, "desc_act": True}, gptq(4, 64, True), 1e-4),
    "AWQ 64": ({"quant_method": "awq", "bits": 4, "version": "gemm"}, awq(64), 1e-4),
    "AWQ 128": ({"quant_method": "awq", "bits": 4, "version": "gemm"}, awq(128), 1e-4),
    "INT8": ({"quant_method": "compressed-tensors", "format": "int-quantized"}, int8, 1e-4),
    "INT8 zero points": (
        {"quant_method": "compressed-tensors", "format": "int-quantized"},
        int8_with_zero_points,
        1e-4,
    ),
    "FP8 tensor": ({"quant_method": "fp8"}, float8("weight_scale", lambda _: (1, 1)), 0.1),
    "FP8 channel": (COMPRESSED, float8("weight_scale", lambda weight: (len(weight), 1)), 0.1),
    "FP8 blocks": (
        {"quant_method": "fp8", "weight_block_size": [64, 64]},
        float8("weight_scale_inv", in_blocks),
        0.1,
    ),
    "FP8 blocks, compressed": (COMPRESSED_BLOCKS, float8("weight_scale", in_blocks), 0.1),
}


def write_checkpoint(
    folder: Path, quantization: dict[str, Any], make: Format, model_type: str = "llama", **changes: Any
) -> PreTrainedModel:
    """Write a tiny model in this format; return it with the weights that were written."""
    model = tiny(model_type, **WIDTHS | changes)
    tensors: Tensors = {}
    for name, tensor in model.state_dict().items():
        if name.endswith("proj.weight"):
            parts, whole = make(tensor)
            tensors |= {f"{name.removesuffix('weight')}{part}": each.contiguous() for part, each in parts.items()}
            tensor.copy_(whole)
        else:
            tensors[name] = tensor
    save_file(tensors, folder / "model.safetensors")
    model.config.save_pretrained(folder)
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"quantization_config": quantization}))
    return model


def logits_of(model: PreTrainedModel) -> torch.Tensor:
    with torch.inference_mode():
        return model.eval()(input_ids=IDS).logits


def loaded(folder: Path, dtype: str = "float32") -> PreTrainedModel:
    config = EngineConfig(model=str(folder), device="cpu", dtype=dtype, attention="reference")  # type: ignore[arg-type]
    return load_model(str(folder), config)[0]


@pytest.mark.parametrize("name", FORMATS)
def test_a_format_has_the_logits_of_what_it_means(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quantization, make, most = FORMATS[name]
    expected = logits_of(write_checkpoint(tmp_path, quantization, make))
    packed = logits_of(loaded(tmp_path))
    monkeypatch.setattr("decoding.model.loading.can_pack", lambda *_: False)
    dense = logits_of(loaded(tmp_path))
    assert (dense - expected).abs().max() < most * expected.abs().max()
    assert (packed - expected).abs().max() < (0.1 + most) * expected.abs().max()  # activations are rounded too


def test_of_several_files_those_are_read_that_transformers_would_read(tmp_path: Path) -> None:
    def names() -> list[str]:
        return [path.name for path in shards_of(str(tmp_path), None)]

    for name in ("consolidated.safetensors", "model-1.safetensors", "model-2.safetensors"):
        save_file({"x": torch.zeros(1)}, tmp_path / name)
    assert names() == ["consolidated.safetensors", "model-1.safetensors", "model-2.safetensors"]
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"x": "model-2.safetensors", "y": "model-1.safetensors"}}))
    assert names() == ["model-1.safetensors", "model-2.safetensors"]
    (tmp_path / "model-2.safetensors").unlink()
    with pytest.raises(ConfigError, match=r"lacks model-2.safetensors, which model.safetensors.index.json names"):
        names()
    index.write_text("{")
    with pytest.raises(ConfigError, match=r"index.json cannot be read"):
        names()
    index.unlink()
    save_file({"x": torch.zeros(1)}, tmp_path / "model.safetensors")
    assert names() == ["model.safetensors"]


def test_gpt_oss_in_mxfp4_has_the_logits_of_what_it_means(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    levels = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])
    model = tiny("gpt_oss")
    tensors: Tensors = {}
    for name, tensor in model.state_dict().items():
        if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            tensors[name] = tensor
            continue
        num_experts, width, num_rows = tensor.shape
        random = torch.Generator().manual_seed(len(name))
        codes = torch.randint(0, 16, (num_experts, num_rows, width // 32, 32), generator=random, dtype=torch.uint8)
        exponents = torch.randint(120, 126, codes.shape[:3], generator=random, dtype=torch.uint8)
        tensors[f"{name}_blocks"] = codes[..., ::2] | codes[..., 1::2] << 4
        tensors[f"{name}_scales"] = exponents
        whole = levels[codes.int()] * torch.exp2(exponents.float() - 127)[..., None]
        tensor.copy_(whole.flatten(2).transpose(1, 2))
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, tmp_path / "model.safetensors")
    model.config.save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    fields = json.loads(path.read_text()) | {"quantization_config": {"quant_method": "mxfp4"}}
    path.write_text(json.dumps(fields))
    monkeypatch.setattr("decoding.model.loading.can_pack", lambda *_: False)
    torch.testing.assert_close(logits_of(loaded(tmp_path)), logits_of(model), rtol=1e-4, atol=1e-4)


def test_a_layer_that_drafts_is_left_to_who_drafts(tmp_path: Path) -> None:
    model = write_checkpoint(tmp_path, *FORMATS["AWQ 64"][:2], "qwen3_5_text")
    expected, file = logits_of(loaded(tmp_path)), tmp_path / "model.safetensors"
    tensors = load_file(file) | {"mtp.fc.weight": torch.zeros(128, 256)}
    tensors |= {f"mtp.layers.0.mlp.up_proj.{name}": each for name, each in awq(64)(torch.randn(256, 128))[0].items()}
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, file)
    assert torch.equal(logits_of(loaded(tmp_path)), expected)
    assert (expected - logits_of(model)).abs().max() < 0.1 * expected.abs().max()


def test_other_methods_and_widths_are_refused_by_name(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, {"quant_method": "bitsnbytes"}, int8)
    with pytest.raises(ConfigError, match="quantization is 'bitsnbytes'"):
        loaded(tmp_path)
    write_checkpoint(tmp_path, {"quant_method": "gptq", "bits": 3}, gptq(4, 32, False))
    with pytest.raises(ConfigError, match="integers of 3 bits; 4 and 8 are served"):
        loaded(tmp_path)


def test_a_model_that_is_quantised_is_not_rounded_again(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, *FORMATS["AWQ 64"][:2])
    with pytest.raises(ConfigError, match="quantised already"):
        load_model(str(tmp_path), EngineConfig(model=str(tmp_path), device="cpu", dtype="float32", weights="int8"))


@pytest.mark.parametrize("name", ["W4A16 zero points", "AWQ 128", "FP8 blocks"])
def test_on_a_gpu_a_format_takes_the_memory_of_its_files(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Libraries keep it packed there, so that weights fit which would not in full precision."""
    write_checkpoint(tmp_path, *FORMATS[name][:2])
    asked: list[int] = []
    monkeypatch.setattr("decoding.model.loading.check_weights_fit", lambda size, *_: asked.append(size))
    monkeypatch.setattr("decoding.model.loading.load_weights", lambda *_: None)
    load_model(str(tmp_path), EngineConfig(model=str(tmp_path), device="cuda", dtype="bfloat16"))
    assert asked == [(tmp_path / "model.safetensors").stat().st_size]


def test_mixtures_and_parts_of_larger_models_are_left_to_libraries_on_a_gpu(tmp_path: Path) -> None:
    for name, is_ours in (
        ("layers.0.mlp", True),
        ("layers.0.mlp.experts.3", False),
        ("language_model.layers.0", False),
    ):
        path = tmp_path / f"{name}.safetensors"
        save_file({f"model.{name}.up_proj.qweight": torch.zeros(1)}, path)
        assert is_packed_on_device(Shards([path]), {"quant_method": "gptq"}) == is_ours
        assert not is_packed_on_device(Shards([path]), {"quant_method": "bitsandbytes"})


def test_weights_that_are_kept_in_buffers_are_counted() -> None:
    layer = torch.nn.Linear(4, 4, bias=False)
    layer.register_buffer("qweight", torch.zeros(64, dtype=torch.int32))
    assert num_bytes_in(layer) == 4 * 4 * 4 + 64 * 4
