"""The command from prompts to a folder that loads, and the answers it makes on the way."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from torch import Tensor

from decoding.config import EngineConfig
from decoding.drafting.eagle.head_config import default_feature_layers
from decoding.engine.engine import Engine
from decoding.engine.start import start_engine
from decoding.errors import ConfigError
from decoding.model.checkpoint import BUNDLED_FOLDER
from decoding.model.target_model import TargetModel
from decoding.training.heads.fresh_head import most_frequent_tokens, new_head
from decoding.training.heads.texts.answers import Asking, Writer, load_answers
from decoding.training.heads.texts.prompts import generated_prompts, prompts_of_file
from decoding.training.heads.train_head import main
from decoding.training.texts.prompts import held_out_prompts
from tests.models import tiny
from tests.training.heads.lessons import VOCAB, target_of

PROMPTS = [[3 + place, 40, 5] for place in range(70)]
ASKING = Asking(temperatures=(0.0, 1.0), max_tokens=12, max_len=64)


@pytest.fixture(scope="module")
def engine() -> Engine:
    config = EngineConfig(max_model_len=128, kv_slots=8192, threads=1)
    return start_engine(TargetModel.from_model(tiny("llama"), config), config)


def write_all(engine: Engine, folder: Path, asking: Asking = ASKING) -> Writer:
    writer = Writer(engine, PROMPTS, asking, folder)
    while not writer.is_done:
        writer.step()
    return writer


def test_answers_are_the_targets_own_and_a_stopped_run_makes_the_missing_shards_alone(
    engine: Engine, tmp_path: Path
) -> None:
    assert write_all(engine, tmp_path).num_ended == 70
    whole = load_answers(tmp_path, 64)
    assert [answer.tokens[:3].tolist() for answer in whole] == PROMPTS
    assert all(1 < len(answer.reply) <= 12 for answer in whole)
    assert [answer.temperature for answer in whole[:3]] == [0.0, 1.0, 0.0]
    with torch.no_grad():
        logits = tiny("llama")(input_ids=torch.from_numpy(whole[0].tokens).long()[None]).logits[0]
    assert whole[0].reply.tolist() == logits[2:-1].argmax(-1).tolist()  # at temperature 0
    kept = (tmp_path / "00000.npz").stat().st_mtime_ns
    (tmp_path / "00001.npz").unlink()
    (tmp_path / "00001.npz.part").write_bytes(b"cut off")
    assert write_all(engine, tmp_path).num_ended == 6
    assert (tmp_path / "00000.npz").stat().st_mtime_ns == kept
    for before, after in zip(whole, load_answers(tmp_path, 64), strict=True):
        assert np.array_equal(before.tokens, after.tokens)
    assert ASKING.name("tiny", PROMPTS) != ASKING.name("tiny", PROMPTS[1:])
    with pytest.raises(ConfigError, match="no answers to learn from"):
        load_answers(tmp_path / "nowhere", 64)
    with pytest.raises(ConfigError, match="no answers to measure"):
        load_answers(tmp_path, 64, held_out=True)


def test_several_answers_of_a_prompt_differ_and_time_that_runs_out_keeps_what_ended(
    engine: Engine, tmp_path: Path
) -> None:
    asking = replace(ASKING, answers=2, temperatures=(1.0,))
    write_all(engine, tmp_path / "all", asking)
    whole = load_answers(tmp_path / "all", 64)
    pairs = list(zip(whole[:70], whole[70:], strict=True))
    assert all(np.array_equal(first.tokens[:3], second.tokens[:3]) for first, second in pairs)
    assert not any(np.array_equal(first.tokens, second.tokens) for first, second in pairs)
    writer = Writer(engine, PROMPTS, asking, tmp_path / "some")
    while writer.num_ended < 3:
        work = writer.step()
        assert work.products > 0
        assert work.num_bytes > engine.model.num_bytes
    writer.give_up()
    assert not engine.has_work
    some = load_answers(tmp_path / "some", 64)
    assert 3 <= len(some) < 70
    assert {answer.tokens.tobytes() for answer in some} <= {answer.tokens.tobytes() for answer in whole}


def test_prompts_come_from_lines_questions_and_conversations(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    turns = [{"from": "human", "value": "Hello"}, {"from": "gpt", "value": "Yes"}, {"from": "human", "value": "So"}]
    lines = [json.dumps({"conversations": turns}), json.dumps({"question": "Two?"}), "three"]
    path.write_text("\n".join(lines))
    tokenizer = Tokenizer.from_file(str(BUNDLED_FOLDER / "tokenizer.json"))
    found = [tokenizer.decode(ids, skip_special_tokens=False) for ids in prompts_of_file(path, str(BUNDLED_FOLDER), 3)]
    assert found == ["<|user|>Hello<|end|><|assistant|>", "Two?", "three"]
    text = "One two three four five six."
    path.write_text(json.dumps({"text": text}))
    (ids,) = prompts_of_file(path, str(BUNDLED_FOLDER), 3)
    assert text.startswith(tokenizer.decode(ids))
    assert 0 < len(tokenizer.decode(ids)) <= len(text) / 2
    path.write_text('{"title": "x"}')
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


def test_what_cannot_be_done_is_refused_in_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prompts, empty, file = tmp_path / "prompts.txt", tmp_path / "empty", tmp_path / "model.gguf"
    prompts.write_text("Say hello.\n")
    file.write_bytes(b"GGUF")
    empty.mkdir()
    for asked, told in {
        ("--data", "nowhere.jsonl"): "'nowhere.jsonl' is neither 'generate', a file of prompts nor a folder of answers",
        ("--data", str(prompts), "--model", str(empty)): f"the tokenizer of {str(empty)!r} cannot be loaded",
        ("--data", str(prompts), "--model", str(file)): "is a GGUF file: train on the folder of the model",
        ("--data", str(prompts), "--held-out", "1"): "the data have 1 prompts, and 1 of them are held out",
    }.items():
        assert main(["--out", str(tmp_path / "out"), "--threads", "1", *asked]) == 2
        assert told in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (("--out", "x", "--objective", "eagle3,gfo"), "'gfo' is none of eagle3, gto, control, block"),
        (("--out", "x", "--objective", "block,gto"), "block is trained alone"),
        (("--out", "x", "--minutes", "3", "--steps", "4"), "--minutes divides time and --steps counts"),
        ((), "name either --out, to train, or --pack"),
    ],
)
def test_what_contradicts_itself_is_refused_before_anything_starts(
    asked: tuple[str, ...], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(asked)
    assert told in " ".join(capsys.readouterr().err.split())
