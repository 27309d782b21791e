"""A broken GGUF file is a sentence: no crash, and no memory beyond the file's size."""

import random
import struct
import tracemalloc
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch

from decoding.errors import GanderError
from decoding.model.files.gguf_file import read_gguf
from decoding.model.files.gguf_place import small_files
from decoding.model.loading import load_gguf
from decoding.model.refusal import refusing
from decoding.weights.matrix import Target
from tests.gguf_files import VOCAB_SIZE, write_gguf
from tests.models import tiny

TARGET = Target(torch.float32, torch.device("cpu"), is_packed=True)
ABSURD = (0, 1, 2**16, 2**31 - 1, 2**32 - 1, 2**62, 2**63 - 1, 2**64 - 1)
MOST_BYTES = 1_500_000  # for a file of 200 kB: Python's records of 600 short strings and a few arrays
QUICK, IN_ALL = 30, 500


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    model = tiny("llama", vocab_size=VOCAB_SIZE, num_hidden_layers=1)
    return write_gguf(tmp_path_factory.mktemp("whole") / "model.gguf", model, "Q8_0").read_bytes()


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    kinds = ["linear_attention", "full_attention"]
    model = tiny("qwen3_5_moe_text", vocab_size=VOCAB_SIZE, num_hidden_layers=2, layer_types=kinds)
    return write_gguf(tmp_path_factory.mktemp("hybrid") / "model.gguf", model, "Q8_0").read_bytes()


def broken(whole: bytes, seed: int, architecture: bytes = b"llama.") -> bytes:
    """The file cut short, or with some of its bytes or one of its numbers changed, mostly in the header."""
    chance, data = random.Random(seed), bytearray(whole)
    end = whole.index(b"blk.0") + 2000
    kind = seed % 4
    if kind == 0:
        return bytes(data[: chance.randrange(len(data))])
    if kind == 1:
        for _ in range(chance.randint(1, 8)):
            data[chance.randrange(end)] ^= 1 << chance.randrange(8)
    elif kind == 2:
        place = chance.randrange(0, end - 8)
        data[place : place + 8] = struct.pack("<Q", chance.choice(ABSURD))
    else:  # a number that something means: the value of a key or a tensor's shape
        keys = [architecture, b"tokenizer.", b"general.", b"blk.0", b"token_embd", b"output"]
        found = whole.index(chance.choice(keys)) + chance.randrange(8, 80)
        data[found : found + 8] = struct.pack("<Q", chance.choice(ABSURD))
    return bytes(data)


def try_to_load(path: Path) -> str | None:
    """The sentence with which the file is refused; None if it is loaded."""
    try:
        with refusing("the model cannot be loaded"):
            file = read_gguf([path])
            load_gguf(file, str(small_files([path])), TARGET)
    except GanderError as error:
        return str(error)
    return None


@pytest.mark.parametrize(
    "seed", [seed if seed < QUICK else pytest.param(seed, marks=pytest.mark.slow) for seed in range(IN_ALL)]
)
def test_a_broken_file_is_loaded_or_refused_with_a_sentence(seed: int, whole: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(broken(whole, seed))
    tracemalloc.start()
    try:
        with suppress(GanderError):
            read_gguf([path])
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < MOST_BYTES
    sentence = try_to_load(path)
    assert sentence is None or "\n" not in sentence


@pytest.mark.parametrize(
    "seed", [seed if seed < QUICK else pytest.param(seed, marks=pytest.mark.slow) for seed in range(IN_ALL)]
)
def test_a_broken_hybrid_is_loaded_or_refused_with_a_sentence(seed: int, hybrid: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(broken(hybrid, seed, b"qwen35moe.ssm." if seed % 8 == 3 else b"qwen35moe."))
    sentence = try_to_load(path)
    assert sentence is None or "\n" not in sentence


def test_whole_files_load(whole: bytes, hybrid: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    for content in (whole, hybrid):
        path.write_bytes(content)
        assert try_to_load(path) is None


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        (lambda data: b"GGML" + data[4:], "does not begin with the letters GGUF"),
        (lambda data: data[:4] + struct.pack("<I", 9) + data[8:], "GGUF version 9"),
        (lambda data: data[:8] + struct.pack("<Q", 2**60) + data[16:], "claims 1152921504606846976 tensors"),
        (lambda data: data[:16] + struct.pack("<Q", 2**60) + data[24:], "claims 1152921504606846976 metadata values"),
        (lambda data: data[:-4096], "and the file has"),
        (lambda data: data[:3], "is not a GGUF file: it has 3 bytes"),
        (
            lambda data: data.replace(b"\x05\0\0\0\0\0\0\0llama", b"\x05\0\0\0\0\0\0\0mamba", 1),
            "architecture is 'mamba'",
        ),
    ],
)
def test_a_fault_is_named(changed, sentence: str, whole: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(changed(whole))
    assert sentence in str(try_to_load(path))


def test_a_tensor_type_that_is_not_served_is_refused_by_name(whole: bytes, tmp_path: Path) -> None:
    name = b"blk.0.attn_q.weight"
    place = whole.index(name) + len(name) + 4 + 16
    path = tmp_path / "model.gguf"
    path.write_bytes(whole[:place] + struct.pack("<I", 19) + whole[place + 4 :])
    assert "'blk.0.attn_q.weight' is of type IQ1_S" in str(try_to_load(path))


def test_scales_that_are_not_finite_are_refused(whole: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(whole)
    start = read_gguf([path]).tensors["blk.0.ffn_up.weight"].rows[0].tobytes()
    infinite = np.float16(np.inf).tobytes() + start[2:]
    path.write_bytes(whole.replace(start, infinite, 1))
    assert "not all finite numbers: model.layers.0.mlp.up_proj.weight" in str(try_to_load(path))
