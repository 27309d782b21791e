"""Engines beside ours on one GGUF file: what is asked of it, the perplexity, and the sections of its page."""

import json
import runpy
from math import exp, log
from pathlib import Path

import msgspec
import pytest
import torch
from rich.console import Console
from transformers import AutoTokenizer

from decoding.bench.peers import __main__ as command
from decoding.bench.peers.asks import ModelAsks
from decoding.bench.peers.options import ADAPTERS, parse
from decoding.bench.peers.peer_process import PeerAnswer, PeerOptions
from decoding.bench.peers.perplexity import score
from decoding.bench.peers.rounds import Row, Setting
from decoding.bench.peers.tables import num_differing, render_drafted
from decoding.errors import ConfigError
from decoding.model.checkpoint import folder_of
from decoding.training.public_prompts import Prompt
from tests.gguf_files import VOCAB_SIZE, write_gguf
from tests.models import tiny

# Scores a window by its length; one of 3 tokens breaks it.
SCRIPTED = """
class Peer:
    version, draftings = "1", ["plain", "auto"]
    def __init__(self, options):
        pass
    def answer(self, task, on_token):
        on_token()
        return [len(task["prompt"])] * task["max_tokens"]
    def nats(self, window):
        assert len(window) != 3, "three"
        return 0.5 * len(window)
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "kept"))
    return write_gguf(tmp_path / "tiny.gguf", tiny("llama", vocab_size=VOCAB_SIZE), "Q8_0")


@pytest.fixture
def scripted(tmp_path: Path) -> Path:
    path = tmp_path / "scripted.py"
    path.write_text(SCRIPTED)
    return path


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "gsm8k_test.jsonl").write_text("\n".join(json.dumps({"prompt": f"{place}?"}) for place in range(4)))
    return folder


def test_a_file_is_asked_through_its_own_template_and_tokenizer(file: Path, tmp_path: Path) -> None:
    asks = ModelAsks(file)
    ask = asks.chats([Prompt(("hi", "and then"))], 5)
    tokenizer = AutoTokenizer.from_pretrained(folder_of(str(file)))
    assert [tokenizer.decode(prompt) for prompt in ask.prompts] == ["<s>user: hi\n"]
    assert (ask.max_tokens, ask.end_tokens, asks.vocab_size) == (5, [2], VOCAB_SIZE)
    text = tmp_path / "rows.jsonl"
    text.write_text('{"prompt": "zzzzz"}\n{"prompt": "yyyyyyyy"}\n')
    windows = asks.windows(text, 13, 4)
    assert [tokenizer.decode(window) for window in windows] == ["zzzz", "z\nyy", "yyyy"]
    with pytest.raises(ConfigError, match="has 13 tokens, less than one window of 14"):
        asks.windows(text, 13, 14)
    with pytest.raises(ConfigError, match="no GGUF file"):
        ModelAsks(text)


def test_each_file_has_sections_of_its_own(file: Path, scripted: Path, data: Path, tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("z" * 1024)
    given = ["--gguf", str(file), "--data", str(data), "--workloads", "gsm8k", "--text", str(text), "--busy"]
    given += ["--rounds", "2", "--prompt-len", "8", "--max-tokens", "6", "--patience", "0", "--out", str(tmp_path)]
    found = command.Contenders({"gander": scripted, "other": scripted, "third": scripted}, {"third": "/nowhere/python"})
    run = command.PeersComparison(parse(given), found, "the command", Console(quiet=True), tmp_path)
    assert run.run() == 0
    page = (tmp_path / "peers.md").read_text()
    assert "<!-- tiny.gguf plain: begin -->" in page
    assert "| tiny.gguf | gander |" in page
    assert "| tiny.gguf, GSM8K | gander | auto |" in page
    assert "Of 2 drafted replies of ours 0 have other tokens than the plain one." in page
    perplexity = f"{exp(512 / 1022):.4f}"
    assert f"| gander 1 | 1022 | {perplexity} |  |\n| other 1 | 1022 | {perplexity} | 1.0000 |" in page
    assert page.count("- third is left out, since it is not installed") == 1
    figures = json.loads((tmp_path / "peers.json").read_text())
    assert set(figures) == {"tiny.gguf plain", "tiny.gguf drafted", "tiny.gguf perplexity"}
    assert figures["tiny.gguf perplexity"]["figures"][0]["num_tokens"] == 1022


def test_a_peer_that_cannot_score_a_window_has_no_score(scripted: Path) -> None:
    options = PeerOptions(model="m", draft_model=None, dtype="gguf", threads=1, max_len=64, cache="c")
    with command.Contenders({"gander": scripted}, {}).started(options) as (running, _):
        found, failures = score(running, [[1, 2], [1, 2, 3], [1, 2]], lambda: None)
    assert (found, failures) == ([], ["gander is left out: AssertionError: three"])


def test_a_drafted_reply_with_another_token_is_counted() -> None:
    def row(drafting: str, *tokens: int) -> Row:
        answer = PeerAnswer(tokens=list(tokens), seconds=2.0, first_seconds=1.0, cpu_seconds=1.0)
        return Row(peer="gander", version="1", drafting=drafting, prompt_lens=[1, 1], answers=[answer] * 2)

    setting = Setting(name="s", rows=[row("plain", 1, 2), row("auto", 1, 2), row("x", 1, 3)], left_out=[], others=[])
    assert num_differing(setting) == (2, 4)
    assert "Of 4 drafted replies of ours 2 have other tokens" in render_drafted([setting])


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (("--text", "t"), "--text needs --gguf"),
        (("--data", "d"), "need --model or --gguf"),
        (("--model", "m", "--gguf", "g"), "takes the place of --model"),
        (("perplexity",), "perplexity --text"),
        (("drafted",), "the part drafted needs --data"),
        (("drafted", "--gguf", "g"), "the part drafted needs --data"),
        (("perplexity", "--gguf", "g"), "perplexity --text"),
    ],
)
def test_options_that_do_not_go_together_are_told(
    given: tuple[str, ...], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parse(given)
    assert sentence in capsys.readouterr().err


def test_the_parts_are_those_that_the_options_allow() -> None:
    assert parse(()).parts == ["plain"]
    assert parse(("--model", "m", "--data", "d")).parts == ["plain", "drafted"]
    assert parse(("--gguf", "g")).parts == ["plain"]
    assert parse(("--gguf", "g", "--data", "d", "--text", "t")).parts == ["plain", "drafted", "perplexity"]


@pytest.mark.slow
def test_our_score_is_that_of_the_models_own_logits(file: Path, tmp_path: Path) -> None:
    given = PeerOptions(model=str(file), draft_model=None, dtype="gguf", threads=1, max_len=64, cache=str(tmp_path))
    window = [1, 9, 300, 9, 300, 7, 7, 250]
    whole = write_gguf(tmp_path / "whole.gguf", tiny("llama", vocab_size=VOCAB_SIZE))
    peer = runpy.run_path(str(ADAPTERS["gander"]))["Peer"](msgspec.to_builtins(given) | {"model": str(whole)})
    with torch.inference_mode():
        logits = tiny("llama", vocab_size=VOCAB_SIZE).eval()(input_ids=torch.tensor([window])).logits[0]
    expected = torch.nn.functional.cross_entropy(logits[:-1], torch.tensor(window[1:]), reduction="sum")
    assert peer.nats(window) == pytest.approx(float(expected), rel=1e-4)
    assert peer.nats(window) == peer.nats(window)
    assert log(VOCAB_SIZE) * 3 < float(expected)
    assert peer.draftings == ["plain", "prompt lookup", "auto"]


def test_who_would_unpack_the_file_refuses_it() -> None:
    given = {"dtype": "gguf", "model": "m", "draft_model": None, "threads": 1}
    with pytest.raises(ValueError, match="would unpack a GGUF file"):
        runpy.run_path(str(ADAPTERS["transformers"]))["Peer"](given)
