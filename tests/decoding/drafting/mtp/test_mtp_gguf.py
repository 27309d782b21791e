"""A GGUF file's MTP head is the one that its safetensors would have brought, or what is wrong is said by name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from decoding.config import EngineConfig
from decoding.drafting.eagle import loaded_head
from decoding.drafting.eagle.head_drafting import HeadDrafting
from decoding.drafting.head_loading import load_head_model
from decoding.drafting.mtp.checkpoint import load_mtp
from decoding.drafting.mtp.network import MtpHead
from decoding.engine.start import load_engine
from decoding.errors import ConfigError
from decoding.model.device.runner import silent
from decoding.model.files import gguf_place
from decoding.model.target_model import TargetModel
from tests.gguf_files import VOCAB_SIZE, write_gguf
from tests.head_bench import HeadedEngine, assert_some_accepted_and_some_rejected
from tests.models import tiny
from tests.mtp import Mtp, mtp_of
from tests.pairs import CONFIG, GIVEN, GREEDY, SAMPLED, finish, prompt_of, request_of

BLOCK = "blk.3."


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is made of GGUF files goes to a folder of the test's own; kernels stay where they are."""
    monkeypatch.setattr(gguf_place, "_kept_folder", lambda name: tmp_path / "kept" / name)


def config_of(path: Path, draft_model: str = "mtp") -> EngineConfig:
    return replace(CONFIG, model=str(path), draft_model=draft_model, device="cpu", dtype="float32")


def target_in(path: Path) -> TargetModel:
    return TargetModel.load(config_of(path), silent)


def head_in(path: Path) -> MtpHead:
    head = load_mtp(config_of(path), target_in(path))
    assert head is not None
    return head


def refusal(path: Path) -> str:
    """What is said of a file where its head is asked for. Left to itself, the model is served without."""
    target = target_in(path)
    assert load_head_model(config_of(path, "auto"), target, silent) is None
    with pytest.raises(ConfigError) as raised:
        load_head_model(config_of(path), target, silent)
    return str(raised.value)


def assert_is_the_modules(head: MtpHead, mtp: Mtp, most: float) -> None:
    """most: of a difference, in parts of a tensor's largest number."""
    found = head.state_dict()
    wanted = {name: each for name, each in mtp.module.model.state_dict().items() if name != "embed_tokens.weight"}
    for own, theirs in (("fc", "eh_proj"), ("pre_fc_norm_embedding", "enorm"), ("pre_fc_norm_hidden", "hnorm")):
        wanted[f"{own}.weight"] = mtp.joining[theirs]
    for name, tensor in wanted.items():
        assert (found[name] - tensor).abs().max() <= most * tensor.abs().max(), name


@pytest.mark.parametrize("model_type", ["qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"])
def test_every_tensor_is_the_published_checkpoints(model_type: str, tmp_path: Path) -> None:
    mtp = mtp_of(model_type, vocab_size=VOCAB_SIZE)
    assert_is_the_modules(head_in(mtp.write_gguf(tmp_path / "model.gguf")), mtp, 1e-5)


def test_packed_tensors_are_unpacked(tmp_path: Path) -> None:
    mtp = mtp_of("qwen3_5_moe_text", vocab_size=VOCAB_SIZE)
    assert_is_the_modules(head_in(mtp.write_gguf(tmp_path / "model.gguf", "Q8_0")), mtp, 0.01)


def test_it_drafts_what_the_published_code_says_and_replies_are_plain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loaded_head, "can_round_to_int8", lambda *_: False)
    mtp = mtp_of("qwen3_5_text", vocab_size=VOCAB_SIZE)
    bench = HeadedEngine(load_engine(config_of(mtp.write_gguf(tmp_path / "model.gguf"), "auto"), kept=GIVEN))
    assert isinstance(bench.engine.draft_model, HeadDrafting)
    for length in (2, 17, 40):
        bench.record(request_of(f"{length}", prompt_of(length, length), GREEDY, "linear", max_depth=4))
    finish(bench.engine)
    drafted, _ = bench.num_checked_by(mtp.shortfalls)
    assert drafted > 20
    ended = bench.assert_plain(
        request_of("greedy", prompt_of(40, 1), GREEDY, "dynamic"),
        request_of("sampled", prompt_of(40, 2), SAMPLED, "eagle"),
    )
    assert_some_accepted_and_some_rejected(list(ended.values()))


@pytest.mark.parametrize(
    ("name", "numbers", "words"),
    [
        ("attn_k.weight", None, f"its MTP head has no tensor {BLOCK}attn_k.weight"),
        ("nextn.enorm.weight", None, "its MTP head has no tensor nextn.enorm.weight"),
        ("attn_k.weight", np.zeros((5, 64)), f"{BLOCK}attn_k.weight of its MTP head is [5, 64] instead of [32, 64]"),
        ("nextn.eh_proj.weight", np.zeros((64, 64)), "eh_proj.weight of its MTP head is [64, 64] instead of [64, 128]"),
        ("ssm_a", np.zeros(4), f"tensors that a qwen3_5_text model has no place for: {BLOCK}ssm_a"),
        ("nextn.hnorm.weight", np.full(64, np.nan), "not all finite numbers: pre_fc_norm_hidden.weight"),
    ],
)
def test_a_tensor_that_does_not_fit_is_named(name: str, numbers: np.ndarray | None, words: str, tmp_path: Path) -> None:
    mtp = mtp_of("qwen3_5_text", vocab_size=VOCAB_SIZE)
    changes = {f"{BLOCK}{name}": None if numbers is None else numbers.astype(np.float32)}
    assert words in refusal(mtp.write_gguf(tmp_path / "model.gguf", **changes))


def test_a_file_without_the_layer_has_no_head(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "model.gguf", tiny("qwen3_5_text", vocab_size=VOCAB_SIZE))
    assert "has no MTP tensors" in refusal(path)


def test_a_family_that_is_not_known_is_named(tmp_path: Path) -> None:
    model = tiny("llama", vocab_size=VOCAB_SIZE, num_hidden_layers=4)
    name = f"{BLOCK}nextn.enorm.weight"
    more = {name: torch.ones(64).numpy()}
    path = write_gguf(tmp_path / "model.gguf", model, metadata={"llama.nextn_predict_layers": 1}, more=more)
    assert f"a tensor {name}, and how a model of type 'llama' drafts with it is not known here" in refusal(path)
