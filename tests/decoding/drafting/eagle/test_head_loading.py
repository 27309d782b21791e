"""A head asked for by name drafts for the model it fits, under either option; any other is refused in a sentence."""

from __future__ import annotations

import json
import logging
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from decoding.cache.batch import StepBatch
from decoding.drafting.eagle.checkpoint import save_head
from decoding.drafting.eagle.head_drafting import HeadDrafting
from decoding.drafting.eagle.head_model import HeadModel
from decoding.engine.start import load_engine, start_engine
from decoding.errors import ConfigError
from tests.heads import fields_of, new_head, trained_head
from tests.models import tiny
from tests.pairs import CONFIG, GIVEN, finish, prompt_of, reply, request_of, target_of


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Of a tiny model and of a head for it."""
    folder = tmp_path_factory.mktemp("models")
    tiny("llama").save_pretrained(folder / "target")
    save_head(trained_head("llama"), folder / "head", "tiny")
    return str(folder / "target"), str(folder / "head")


@pytest.mark.parametrize("option", ["draft_head", "draft_model"])
def test_a_head_drafts_under_either_option(folders: tuple[str, str], option: str) -> None:
    model, head = folders
    config = replace(CONFIG, model=model, device="cpu", dtype="float32", **{option: head})  # type: ignore[arg-type]
    engine = load_engine(config, kept=GIVEN)
    assert isinstance(engine.draft_model, HeadDrafting)
    assert {"eagle", "dynamic"} <= set(engine.methods)
    prompt = prompt_of(30)
    plain = reply(engine, request_of("plain", prompt))
    request = request_of("drafted", prompt, method="eagle")
    engine.add(request)
    ended, _ = finish(engine)
    assert request.output.tolist() == plain
    assert ended["drafted"].counts.accepted > 0
    assert ended["drafted"].draft_model_seconds > 0
    assert engine.stats().draft_bytes > engine.draft_model.model.num_bytes > 0


def test_a_head_looks_up_its_targets_packed_embeddings(folders: tuple[str, str]) -> None:
    model, head = folders
    engine = load_engine(
        replace(CONFIG, model=model, draft_head=head, device="cpu", dtype="float32", weights="int4"), kept=GIVEN
    )
    assert isinstance(engine.draft_model, HeadDrafting)
    drafter = engine.draft_model.model
    assert isinstance(drafter, HeadModel)
    assert drafter._head.embed_tokens is engine.model.shared.packed_embedding is not None
    assert drafter._fused is not None
    unpacked = load_engine(
        replace(CONFIG, model=model, draft_head=head, device="cpu", dtype="float32"), kept=GIVEN
    ).draft_model
    assert isinstance(unpacked, HeadDrafting)
    assert drafter.num_bytes == unpacked.model.num_bytes, "the embeddings are the target's in both"
    plain = reply(engine, request_of("plain", prompt_of(30)))
    request = request_of("drafted", prompt_of(30), method="eagle")
    engine.add(request)
    ended, _ = finish(engine)
    assert request.output.tolist() == plain
    assert ended["drafted"].counts.drafted > 0


def test_in_bfloat16_the_head_is_the_targets_kind(folders: tuple[str, str]) -> None:
    model, head = folders
    engine = load_engine(
        replace(CONFIG, model=model, draft_head=head, device="cpu", dtype="bfloat16", attention="sdpa"),
        kept=GIVEN,
    )
    request = request_of("drafted", prompt_of(30), method="eagle")
    engine.add(request)
    ended, _ = finish(engine)
    assert ended["drafted"].counts.accepted > 0
    assert engine.draft_model is not None
    assert engine.draft_model.store.dtype == torch.bfloat16


def test_two_that_draft_are_refused(folders: tuple[str, str]) -> None:
    model, head = folders
    with pytest.raises(ConfigError, match="only one of them can draft"):
        load_engine(replace(CONFIG, model=model, draft_head=head, draft_model=model, device="cpu"))


def test_a_head_of_another_model_is_refused(folders: tuple[str, str], tmp_path: Path) -> None:
    fields = json.loads((Path(folders[1]) / "config.json").read_text())
    fields["transformer_layer_config"]["vocab_size"] = 250
    (tmp_path / "config.json").write_text(json.dumps(fields))
    (tmp_path / "model.safetensors").write_bytes((Path(folders[1]) / "model.safetensors").read_bytes())
    with pytest.raises(ConfigError, match="vocab_size is 250, and the target has 199 tokens"):
        load_engine(replace(CONFIG, model=folders[0], draft_head=str(tmp_path), device="cpu"))
    with pytest.raises(ConfigError, match="is no folder and cannot be had"):
        load_engine(replace(CONFIG, model=folders[0], draft_head=str(tmp_path / "nothing"), device="cpu"))


def test_a_vocabulary_too_small_to_make_a_tree_of_is_refused() -> None:
    target = target_of("llama")
    with pytest.raises(ConfigError, match="drafts 6 tokens"):
        HeadModel(new_head(target.shared.embeddings, fields_of(draft_vocab_size=6)), target)


class BreakingHead(HeadModel):
    """Gives numbers that are none in the `countdown`-th forward from now."""

    countdown = 0

    def run(self, batch: StepBatch, hidden_ME: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden_RE, logits_RW = super().run(batch, hidden_ME)
        self.countdown -= 1
        return hidden_RE, logits_RW * float("nan") if self.countdown == 0 else logits_RW


@pytest.mark.parametrize("method", ["eagle", "dynamic"])
@pytest.mark.parametrize("countdown", [2, 3, 12])
def test_numbers_that_are_none_are_given_up_and_the_tokens_stay(
    caplog: pytest.LogCaptureFixture, method: str, countdown: int
) -> None:
    target = target_of("llama")
    head = BreakingHead(deepcopy(trained_head("llama")), target)
    engine = start_engine(target, CONFIG, draft_model=head, kept=GIVEN)
    plain = reply(engine, request_of("plain", prompt_of(30)))
    request = request_of("drafted", prompt_of(30), method=method, max_nodes=8)
    engine.add(request)
    head.countdown = countdown
    with caplog.at_level(logging.WARNING):
        ended, _ = finish(engine)
    assert head.countdown == 0, "nothing broke, or the head was asked again"
    assert request.output.tolist() == plain
    assert ended["drafted"].choice == "fallback"
    assert "the head gave numbers that are not finite" in caplog.text
