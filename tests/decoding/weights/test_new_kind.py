"""A kind of weights that only these tests know is served like any other, by its record and what unpacks it.

Its blocks fit no kernel's groups, and no other code names it.
"""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

from decoding.config import EngineConfig
from decoding.model.device.runner import silent
from decoding.model.files.gguf_file import read_gguf
from decoding.model.files.gguf_model import weights_of
from decoding.model.files.gguf_place import small_files
from decoding.model.loading import load_gguf, packed_kinds
from decoding.model.self_test import long_chain
from decoding.model.target_model import TargetModel
from decoding.weights.kinds import KINDS
from decoding.weights.linear import held_by, matrices_in
from decoding.weights.matrix import Matrix, Target
from tests.decoding.weights.three_bits.record import THREE_BITS
from tests.gguf_files import VOCAB_SIZE, Encoding, write_gguf
from tests.models import tiny
from tests.row_exact import use_row_exact_dots

CPU = torch.device("cpu")
SHAPE = {"hidden_size": 96, "num_hidden_layers": 2, "vocab_size": VOCAB_SIZE}
SHAPES = {"llama": {"intermediate_size": 192}, "qwen3_moe": {"moe_intermediate_size": 48, "intermediate_size": 192}}


@pytest.fixture(autouse=True)
def _known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(KINDS, THREE_BITS.name, THREE_BITS)
    monkeypatch.setitem(gguf.GGML_QUANT_SIZES, THREE_BITS.number, (THREE_BITS.values, THREE_BITS.num_bytes))
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "kept"))


def encoded(numbers: np.ndarray) -> np.ndarray:
    blocks = numbers.reshape(-1, 24)
    scales = (np.abs(blocks).max(1, keepdims=True) / 4).astype(np.float16)
    codes = np.clip(np.rint(blocks / scales) + 4, 0, 7).astype(np.uint8)
    bits = codes[..., None] >> np.arange(3, dtype=np.uint8) & 1
    packed = np.packbits(bits.reshape(len(blocks), 72), axis=1, bitorder="little")
    return np.concatenate((scales.view(np.uint8), packed), 1).reshape(*numbers.shape[:-1], -1)


def written(folder: Path, model_type: str = "llama", *, is_tied: bool = False) -> Path:
    model = tiny(model_type, **SHAPE, **SHAPES[model_type], tie_word_embeddings=is_tied)
    return write_gguf(folder / "model.gguf", model, Encoding(99, 24, encoded))


def stored(folder: Path) -> Matrix:
    file = read_gguf([written(folder)])
    model, _ = load_gguf(file, str(small_files(file.paths)), Target(torch.float32, CPU, is_packed=False))
    return weights_of(file, model)["model.layers.0.mlp.up_proj.weight"]


def config(path: Path) -> EngineConfig:
    return EngineConfig(model=str(path), device="cpu", dtype="float32", max_model_len=64, threads=1)


def test_a_file_of_it_is_read_and_means_what_was_written(tmp_path: Path) -> None:
    matrix = stored(tmp_path)
    own = tiny("llama", **SHAPE, **SHAPES["llama"]).model.layers[0].mlp.up_proj.weight.detach()
    steps = own.view(-1, 24).abs().amax(1).repeat_interleave(24).view_as(own) / 4
    assert matrix.kind is THREE_BITS
    assert matrix.shape == (192, 96)
    assert bool(((matrix.dense(torch.float32) - own).abs() <= 1.01 * steps).all())


@pytest.mark.parametrize("by_triton", [False, True], ids=["CPU", "Triton"])
def test_lone_rows_and_prompts_are_multiplied_by_it_packed(
    by_triton: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if by_triton:
        pytest.importorskip("triton", reason="Triton is not installed: its kernels are not tested")
        if torch.cuda.is_available():
            pytest.skip("kernels are interpreted where there is no GPU")
        use_row_exact_dots(monkeypatch)
    matrix, target = stored(tmp_path), Target(torch.float32, CPU, is_packed=True, by_triton=by_triton)
    packed, rows = matrix.packed(target), torch.randn(70, 96)
    assert packed.nbytes <= matrix.nbytes_in(target) * 1.1 < 192 * 96 * 4 / 4
    whole, expected = packed.rows(rows), rows @ matrix.dense(torch.float32).t()
    assert (whole - expected).abs().max() <= 0.02 * expected.abs().max()
    for start, count in ((0, 1), (69, 1), (3, 5), (0, 33)):
        assert torch.equal(packed.rows(rows[start : start + count]), whole[start : start + count])


@pytest.mark.parametrize("is_tied", [False, True])
def test_an_embedding_and_a_head_are_of_it(is_tied: bool, tmp_path: Path) -> None:
    path = written(tmp_path, is_tied=is_tied)
    file = read_gguf([path])
    target = Target(torch.float32, CPU, is_packed=True)
    model, packing = load_gguf(file, str(small_files([path])), target)
    dense, _ = load_gguf(file, str(small_files([path])), Target(torch.float32, CPU, is_packed=False))
    looked_up, head = (held_by(each) for each in (model.get_input_embeddings(), model.get_output_embeddings()))
    assert packing.name == THREE_BITS.name
    assert looked_up is not None
    assert (looked_up is head) == is_tied
    assert torch.equal(looked_up.row(torch.arange(VOCAB_SIZE)), dense.get_input_embeddings().weight)


@pytest.mark.parametrize("model_type", SHAPES)
def test_a_model_of_it_is_exact_with_experts_of_it_too(model_type: str, tmp_path: Path) -> None:
    path = written(tmp_path, model_type)
    assert (4, 32, 2) in packed_kinds(config(path))
    model = TargetModel.load(config(path), silent)
    kinds = [matrix.kind.name for matrix in matrices_in(model._model)]
    assert kinds.count(THREE_BITS.name) > (8 if model_type == "llama" else 20)
    assert model.weights == THREE_BITS.name
    assert model.is_exact
    dense, _ = load_gguf(read_gguf([path]), str(small_files([path])), Target(torch.float32, CPU, is_packed=False))
    expected = TargetModel.from_model(dense, EngineConfig(max_model_len=64, threads=1)).forward(long_chain(model))
    assert (model.forward(long_chain(model)) - expected).norm() < 0.1 * expected.norm()
