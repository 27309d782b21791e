"""Models of GGUF files that see with a projector's file (mmproj): the replies of transformers' own models, and what is
said where a file does not fit."""

from __future__ import annotations

import json
import shutil
from copy import deepcopy
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import pytest
import torch
from gguf.quants import dequantize
from transformers import AutoTokenizer, PreTrainedModel

from decoding.engine.start import start_engine
from decoding.errors import ConfigError
from decoding.model.device.runner import silent
from decoding.model.target_model import TargetModel
from decoding.model.vision.projector_files import sight_of
from tests.gguf_files import VOCAB_SIZE, encoding_of, write_gguf
from tests.mmproj_files import TEXTS, write_language, write_mmproj
from tests.models import tiny
from tests.pairs import CONFIG, GIVEN, finish, reply, request_of
from tests.seeing import picture, tiny_seeing
from tests.seeing_engines import LAWS, METHODS, Family, check_against_generate

FAMILIES = (
    "gemma3",
    "idefics3",
    "qwen2_vl",
    "qwen2_5_vl",
    "qwen3_vl",
    "qwen3_vl_moe",
    "qwen3_5",
    "qwen3_5_moe",
    "pixtral",
    "mistral3",
)
IMAGES = [picture(1), picture(2, 64, 20)]


@cache
def written(kind: str) -> tuple[PreTrainedModel, Path]:
    """A model, and the folder of its two files."""
    folder = Path(mkdtemp())
    own = tiny_seeing(kind, folder / "hub", **TEXTS.get(kind, {}))
    write_language(folder / "model.gguf", kind, own)
    write_mmproj(folder / "mmproj-model.gguf", kind, own)
    return own, folder


def loaded(model: Path, **options: Any) -> TargetModel:
    return TargetModel.load(replace(CONFIG, model=str(model), dtype="float32", **options), silent)


@cache
def family_of(kind: str) -> Family:
    own, folder = written(kind)
    return family_in(folder, kind, own)


def family_in(folder: Path, kind: str, own: PreTrainedModel) -> Family:
    model = loaded(folder)
    assert model.blindness is None
    assert model.is_exact
    return Family(kind, own, start_engine(model, CONFIG, kept=GIVEN))


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest) -> Family:
    found = family_of(request.param)
    found.engine.start_afresh(0.0)
    return found


def test_a_reply_is_that_of_transformers_own_generate(family: Family) -> None:
    check_against_generate(family, IMAGES)
    assert family.engine.pictures is not None
    assert family.engine.pictures.num_seen == 2


def test_drafted_replies_are_the_plain_ones(family: Family) -> None:
    plain = reply(family.engine, family.request("plain", IMAGES, sampling=LAWS["sampled"]))
    for method in METHODS:
        request = family.request(method, IMAGES, sampling=LAWS["sampled"], method=method)
        family.engine.add(request)
        finish(family.engine)
        assert request.output.tolist() == plain, method


@pytest.mark.parametrize("quantization", ["F16", "Q8_0"])
@pytest.mark.parametrize("kind", ["gemma3", "idefics3", "qwen2_5_vl"])
def test_a_quantised_projector_is_read_as_its_numbers(kind: str, quantization: str, tmp_path: Path) -> None:
    own, folder = written(kind)
    shutil.copy(folder / "model.gguf", tmp_path)
    write_mmproj(tmp_path / "mmproj.gguf", kind, own, quantization)
    rounded = deepcopy(own)
    for name, parameter in rounded.model.named_parameters():
        if not name.startswith(("language_model.", "text_model.")) and "position_embedding" not in name:
            parameter.data = rounded_as(quantization, parameter.data)
    assert any(not torch.equal(*pair) for pair in zip(rounded.parameters(), own.parameters(), strict=True))
    check_against_generate(family_in(tmp_path, kind, rounded), IMAGES)


def rounded_as(quantization: str, numbers: torch.Tensor) -> torch.Tensor:
    encoding = encoding_of(quantization)
    if numbers.dim() < 2 or numbers.shape[-1] % encoding.values:
        return numbers
    codes = encoding.encode(np.ascontiguousarray(numbers.numpy()))
    return torch.from_numpy(dequantize(codes, encoding.number).astype(np.float32)).reshape(numbers.shape)  # type: ignore[arg-type]


def test_names_that_early_converters_changed_round_are_put_right(tmp_path: Path) -> None:
    own, folder = written("gemma3")
    shutil.copy(folder / "model.gguf", tmp_path)
    write_mmproj(tmp_path / "mmproj.gguf", "gemma3", own, is_early=True)
    check_against_generate(family_in(tmp_path, "gemma3", own), IMAGES)


def test_a_vocabulary_without_the_token_of_rows_has_one_that_no_text_has(tmp_path: Path) -> None:
    """Gemma's, of some converters."""
    own, _ = written("gemma3")
    write_language(tmp_path / "model.gguf", "gemma3", own, renamed={"<image_soft_token>": "<unused0>"})
    write_mmproj(tmp_path / "mmproj.gguf", "gemma3", own)
    model = loaded(tmp_path)
    assert model.tower is not None
    folder = sight_of((tmp_path / "model.gguf",), None).folder
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    assert (tokenizer.image_token, tokenizer.image_token_id) == ("<unused0>", model.tower.image_token_id)


def test_a_model_without_its_projector_is_one_of_text(tmp_path: Path) -> None:
    _, folder = written("qwen2_5_vl")
    shutil.copy(folder / "model.gguf", tmp_path)
    blind = loaded(tmp_path)
    assert blind.tower is None
    assert blind.blindness == "no projector (mmproj) is beside its GGUF file, nor named by --mmproj"
    prompt = np.arange(3, 43, dtype=np.int32)
    replies = [
        reply(start_engine(model, CONFIG, kept=GIVEN), request_of("text", prompt, LAWS["sampled"], "auto"))
        for model in (blind, family_of("qwen2_5_vl").engine.model)
    ]
    assert replies[0] == replies[1]
    named = loaded(tmp_path, mmproj=str(folder / "mmproj-model.gguf"))
    assert named.tower is not None
    assert loaded(folder, images=False).blindness == "it is served with --no-images"


# What is wrong with a file beside the model: which family wrote it, with which metadata, and the sentence.
WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("gemma3", {}, "its projector is of type 'gemma3', for a model of architecture gemma3, not llama"),
    (
        "idefics3",
        {"clip.vision.projection_dim": 96},
        "gives 96 numbers for each token of a picture, and the model takes 64",
    ),
    ("idefics3", {"clip.projector_type": "resampler"}, "of type 'resampler'; the types that are read are gemma3, "),
    ("idefics3", {"clip.projector_type": None}, "its projector is of type missing"),
    ("idefics3", {"clip.has_vision_encoder": False}, "it has no tower for pictures"),
    ("idefics3", {"clip.vision.image_mean": [0.5, 0.5]}, "its clip.vision.image_mean is a list of 2; it must be three"),
    ("idefics3", {"clip.vision.embedding_length": 64}, "its clip.vision.embedding_length is 64, which v.patch_embd"),
    ("idefics3", {"clip.vision.block_count": 1}, "it has tensors that the tower of a idefics3 model has no place for"),
    ("idefics3", {"clip.vision.block_count": 3}, "the weights of its tower lack vision_model.encoder.layers.2"),
    ("idefics3", {"clip.vision.block_count": 10**6}, "its clip.vision.block_count is 1000000, and it has"),
    ("idefics3", {"clip.vision.attention.head_count": 3}, "head_count is 3, which does not divide 32"),
    ("idefics3", {"clip.vision.image_size": 42}, "its pictures have 9 patches, and v.position_embd.weight is for 4"),
    ("idefics3", {"clip.vision.patch_size": 7}, "of patches of 7 pixels a side"),
    (
        "idefics3",
        {"clip.vision.projector.scale_factor": 4},
        "the weights of its tower do not fit its metadata: connector",
    ),
]


@pytest.mark.parametrize(("kind", "metadata", "sentence"), WRONG)
def test_a_projector_that_does_not_fit_is_told_or_refused(
    kind: str, metadata: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    """One that is found leaves the model to read text; one that is asked for ends the start."""
    shutil.copy(written("idefics3")[1] / "model.gguf", tmp_path)
    write_mmproj(tmp_path / "mmproj.gguf", kind, written(kind)[0], metadata=metadata)
    check_wrong(tmp_path, sentence)


def check_wrong(folder: Path, sentence: str) -> None:
    blind = loaded(folder)
    assert blind.tower is None
    assert blind.blindness is not None
    assert sentence in blind.blindness
    with pytest.raises(ConfigError) as raised:
        loaded(folder, mmproj=str(folder / "mmproj.gguf"))
    assert sentence in str(raised.value)


def test_a_file_that_is_broken_or_none_is_told_or_refused(tmp_path: Path) -> None:
    folder = written("idefics3")[1]
    shutil.copy(folder / "model.gguf", tmp_path)
    whole = (folder / "mmproj-model.gguf").read_bytes()
    (tmp_path / "mmproj.gguf").write_bytes(whole[: len(whole) // 2])
    check_wrong(tmp_path, "mmproj.gguf cannot be read: tensor 'v.")
    (tmp_path / "mmproj.gguf").write_bytes((folder / "model.gguf").read_bytes())
    check_wrong(tmp_path, "it is no projector (mmproj): its architecture is 'llama'")
    with pytest.raises(ConfigError, match=r"--mmproj names .*other.gguf, which is no file"):
        loaded(tmp_path, mmproj=str(tmp_path / "other.gguf"))
    with pytest.raises(ConfigError, match=r"--mmproj names the projector of a GGUF file, and '.*hub' is none"):
        loaded(folder / "hub", mmproj=str(folder / "mmproj-model.gguf"))
    with pytest.raises(ConfigError, match=r"mmproj-model.gguf cannot be served: it is the projector \(mmproj\) of"):
        loaded(folder / "mmproj-model.gguf")


def test_which_of_several_projectors_is_meant_must_be_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = written("idefics3")[1]
    for name in ("a-mmproj.gguf", "b-mmproj.gguf"):
        shutil.copy(folder / "mmproj-model.gguf", tmp_path / name)
    shutil.copy(folder / "model.gguf", tmp_path)
    blind = loaded(tmp_path)
    assert blind.blindness == "several projectors (mmproj) are beside its GGUF file: a-mmproj.gguf, b-mmproj.gguf"
    assert f"Pictures are not taken: {blind.blindness}." in caplog.messages
    assert loaded(tmp_path, mmproj=str(tmp_path / "b-mmproj.gguf")).tower is not None


def test_a_vocabulary_must_have_what_a_picture_needs(tmp_path: Path) -> None:
    own, folder = written("idefics3")
    write_language(tmp_path / "model.gguf", "idefics3", own, renamed={"<image>": "<i>", "<global-img>": "<g>"})
    shutil.copy(folder / "mmproj-model.gguf", tmp_path / "mmproj.gguf")
    check_wrong(tmp_path, "the model's vocabulary lacks tokens that a picture needs: <global-img>, <image>")
    other = tmp_path / "other"
    other.mkdir()
    write_gguf(other / "model.gguf", tiny("llama", vocab_size=VOCAB_SIZE))
    shutil.copy(folder / "mmproj-model.gguf", other / "mmproj.gguf")
    check_wrong(
        other,
        "the model's vocabulary lacks tokens that a picture needs: <fake_token_around_image>, <global-img>, <image>",
    )


def test_positions_in_height_and_width_must_be_half_a_heads_numbers(tmp_path: Path) -> None:
    own, _ = written("qwen2_vl")
    path = write_language(tmp_path / "model.gguf", "qwen2_vl", own, sections=[2, 3, 4, 0])
    with pytest.raises(
        ConfigError, match=r"qwen2vl.rope.dimension_sections is a list of 4, whose first three must add up"
    ):
        loaded(path)


def test_what_no_file_says_is_the_families_own(tmp_path: Path) -> None:
    """A template of chats, and how large a picture may be."""
    own, _ = written("qwen2_vl")
    write_language(tmp_path / "model.gguf", "qwen2_vl", own, template=False)
    pixels = dict.fromkeys(("clip.vision.image_min_pixels", "clip.vision.image_max_pixels"))
    write_mmproj(tmp_path / "mmproj.gguf", "qwen2_vl", own, metadata=pixels)
    folder = sight_of((tmp_path / "model.gguf",), None).folder
    assert folder is not None
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    content = [{"type": "image"}, {"type": "text", "text": "what?"}]
    messages: list[dict[str, Any]] = [{"role": "system", "content": "be"}, {"role": "user", "content": content}]
    assert tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False) == (
        "<|im_start|>system\nbe<|im_end|>\n<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>what?<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    size = json.loads((folder / "preprocessor_config.json").read_text())["size"]
    assert size == {"shortest_edge": 3136, "longest_edge": 12_845_056}
