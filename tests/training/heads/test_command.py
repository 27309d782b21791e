"""The command from prompts to a folder that loads, and the answers it makes on the way."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from torch import Tensor

from decoding.config import EngineConfig
from decoding.drafting.eagle.checkpoint import HeadTarget, load_head
from decoding.drafting.eagle.head_config import default_feature_layers
from decoding.engine.engine import Engine
from decoding.engine.start import start_engine
from decoding.errors import ConfigError
from decoding.model.checkpoint import BUNDLED_FOLDER
from decoding.model.target_model import TargetModel
from decoding.training.heads.texts.answers import Asking, load_answers, regenerate
from decoding.training.heads.fresh_head import most_frequent_tokens, new_head
from decoding.training.heads.texts.prompts import generated_prompts, prompts_of_file
from decoding.training.heads.train_head import main
from decoding.training.texts.prompts import held_out_prompts
from tests.models import tiny
from tests.training.heads.lessons import VOCAB, target_of

ASKING = Asking(temperatures=(0.0, 1.0), max_tokens=12, max_len=64)


@pytest.fixture(scope="module")
def engine() -> Engine:
    config = EngineConfig(max_model_len=128, kv_slots=8192, threads=1)
    return start_engine(TargetModel.from_model(tiny("llama"), config), config)


def test_answers_are_the_targets_own_and_a_stopped_run_makes_the_missing_shards_alone(
    engine: Engine, tmp_path: Path
) -> None:
    prompts = [[3 + place, 40, 5] for place in range(70)]
    told: list[int] = []
    regenerate(engine, prompts, ASKING, tmp_path, told.append)
    assert told == [64, 70]
    whole = load_answers(tmp_path, 64)
    assert [answer.tokens[:3].tolist() for answer in whole] == prompts
    assert all(1 < len(answer.reply) <= 12 for answer in whole)
    with torch.no_grad():
        logits = tiny("llama")(input_ids=torch.from_numpy(whole[0].tokens).long()[None]).logits[0]
    assert whole[0].reply.tolist() == logits[2:-1].argmax(-1).tolist()  # at temperature 0
    kept = (tmp_path / "00000.npz").stat().st_mtime_ns
    (tmp_path / "00001.npz").unlink()
    (tmp_path / "00001.npz.part").write_bytes(b"cut off")
    regenerate(engine, prompts, ASKING, tmp_path, told.append)
    assert (tmp_path / "00000.npz").stat().st_mtime_ns == kept
    for before, after in zip(whole, load_answers(tmp_path, 64), strict=True):
        assert np.array_equal(before.tokens, after.tokens)
    assert ASKING.name("tiny", prompts) != ASKING.name("tiny", prompts[1:])
    with pytest.raises(ConfigError, match="no answers"):
        load_answers(tmp_path / "nowhere", 64)


def test_prompts_come_from_lines_questions_and_conversations(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    turns = [{"from": "human", "value": "Hello"}, {"from": "gpt", "value": "Yes"}, {"from": "human", "value": "So"}]
    lines = [json.dumps({"conversations": turns}), json.dumps({"question": "Two?"}), "three"]
    path.write_text("\n".join(lines))
    tokenizer = Tokenizer.from_file(str(BUNDLED_FOLDER / "tokenizer.json"))
    found = [tokenizer.decode(ids, skip_special_tokens=False) for ids in prompts_of_file(path, str(BUNDLED_FOLDER), 3)]
    assert found == ["<|user|>Hello<|end|><|assistant|>", "Two?", "three"]
    path.write_text('{"text": "x"}')
    with pytest.raises(ConfigError, match="line 1"):
        prompts_of_file(path, str(BUNDLED_FOLDER), 1)


def test_generated_prompts_are_the_same_each_time_and_none_is_held_out() -> None:
    tokenizer = Tokenizer.from_file(str(BUNDLED_FOLDER / "tokenizer.json"))
    prompts = generated_prompts(str(BUNDLED_FOLDER), 60, 0)
    assert prompts == generated_prompts(str(BUNDLED_FOLDER), 60, 0)
    assert len({tuple(prompt) for prompt in prompts}) > 50
    texts = {tokenizer.decode(prompt) for prompt in prompts}
    for skill in ("code", "reasoning", "stories"):
        assert not texts & set(held_out_prompts(skill, 200, 1))


def test_the_draft_vocabulary_is_the_most_frequent_tokens_in_order() -> None:
    replies = [np.array([5, 5, 2, 9], np.int32), np.array([9, 7, 5], np.int32)]
    assert most_frequent_tokens(replies, 12, 3).tolist() == [2, 5, 9]
    assert most_frequent_tokens(replies, 12, 12).tolist() == list(range(12))


@pytest.mark.parametrize("model_type", ["llama", "gemma2", "gpt_neox"])
def test_a_fresh_head_says_what_its_target_would_of_the_same_hidden_state(model_type: str) -> None:
    model = tiny(model_type, vocab_size=VOCAB, final_logit_softcapping=None)
    kinds: list[Tensor] = []
    with torch.no_grad():
        model.get_decoder().register_forward_hook(lambda _module, _args, out: kinds.append(out.last_hidden_state))
        model.get_decoder().layers[-1].register_forward_hook(lambda _module, _args, out: kinds.append(out))
        expected = model(input_ids=torch.arange(9)[None]).logits
    last = kinds[0][0] if isinstance(kinds[0], tuple) else kinds[0]
    target = target_of(model)
    tokens = torch.arange(0, VOCAB, 3)
    head = new_head(target, tokens, 0)
    assert head.config.feature_layers == default_feature_layers(len(target.model.layers))
    if model_type != "gpt_neox":  # whose norm is of another kind
        with torch.no_grad():
            torch.testing.assert_close(head.logits(last), expected[..., tokens], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(("model_type", "takes_attention"), [("llama", True), ("qwen2", False), ("qwen3", False)])
def test_a_fresh_head_begins_as_the_last_layer_as_far_as_it_has_its_parts(
    model_type: str, takes_attention: bool
) -> None:
    model = tiny(model_type, vocab_size=VOCAB)
    last = {name: each.clone() for name, each in model.get_decoder().layers[-1].state_dict().items()}
    head = new_head(target_of(model), torch.arange(VOCAB), 0)
    width, own = head.config.width, head.layers[0].state_dict()
    assert torch.equal(own["mlp.down_proj.weight"], last["mlp.down_proj.weight"])
    torch.testing.assert_close(own["hidden_norm.weight"], last["input_layernorm.weight"])
    assert torch.equal(own["self_attn.q_proj.weight"][:, width:], last["self_attn.q_proj.weight"]) == takes_attention
    assert torch.equal(own["self_attn.o_proj.weight"], last["self_attn.o_proj.weight"]) == takes_attention


@pytest.mark.slow
def test_the_command_trains_a_head_that_loads_and_gto_goes_on_from_it(tmp_path: Path) -> None:
    out, tuned = tmp_path / "head", tmp_path / "tuned"
    small = ["--held-out", "2", "--steps", "2", "--threads", "1", "--max-len", "96", "--draft-vocabulary", "600"]
    assert main(["--out", str(out), "--prompts", "6", "--max-tokens", "40", *small]) == 0
    shards = next((out / "work").glob("answers-*"))
    going_on = ["--objective", "gto", "--start", str(out), "--groups", "1", "--group-size", "2"]
    assert main(["--out", str(tuned), "--data", str(shards), *going_on, *small]) == 0
    embeddings = torch.zeros(2048, 256)
    for folder in (out, tuned):
        head = load_head(folder, HeadTarget(embeddings, 5))
        assert head.lm_head.weight.shape == (600, 256)
        told = json.loads((folder / "training.json").read_text())
        assert all(length >= 1 for length in told["acceptance_lengths"].values())
        assert (folder / "curves.svg").read_text().count("depth 7")
    fields = json.loads((out / "config.json").read_text())
    assert fields["speculators_model_type"] == "eagle3"
    assert fields["eagle_aux_hidden_state_layer_ids"] == [1, 3, 5]


def test_what_cannot_be_done_is_refused_in_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prompts, empty, file = tmp_path / "prompts.txt", tmp_path / "empty", tmp_path / "model.gguf"
    prompts.write_text("Say hello.\n")
    file.write_bytes(b"GGUF")
    empty.mkdir()
    for asked, told in {
        ("--data", "nowhere.jsonl"): "'nowhere.jsonl' is neither 'generate', a file of prompts nor a folder of answers",
        ("--data", str(prompts), "--model", str(empty)): "config.json",
        ("--data", str(prompts), "--model", str(file)): "is a GGUF file: train on the folder of the model",
    }.items():
        assert main(["--out", str(tmp_path / "out"), "--threads", "1", *asked]) == 2
        assert told in " ".join(capsys.readouterr().err.split())
