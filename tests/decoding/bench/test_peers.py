"""Engines beside ours: what is asked and answered, who is missing or fails, the gate, the tables, the shared models."""

import json
import runpy
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest
from rich.console import Console
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from decoding.bench.peers import __main__ as command
from decoding.bench.peers.gate import SAMPLE_SECONDS, IdleGate, MachineBusy, ProcessorTimes, read_processor_times
from decoding.bench.peers.peer_process import (
    CHILD,
    PeerAnswer,
    PeerFailed,
    PeerMissing,
    PeerOptions,
    PeerProcess,
    PeerTask,
)
from decoding.bench.peers.rounds import Ask, Rounds, Row, Setting, agreement
from decoding.bench.peers.tables import render_drafted, render_plain
from tests.models import VOCAB_SIZE, tiny

# Counts upwards from the prompt's last token; asked to draft, it fails in one way or another.
SCRIPTED = """
import os, time
class Peer:
    version = "1"
    def __init__(self, options):
        print("peers print what they like")
        if options["dtype"] == "int8":
            raise ValueError("no int8 here\\nand more")
        if options["dtype"] == "bfloat16":
            import a_package_that_nobody_has
        self.draftings = ["plain", options["draft_model"] or "prompt lookup"]
    def answer(self, task, on_token):
        if task["drafting"] == "raise":
            raise RuntimeError("cannot draft")
        if task["drafting"] == "exit":
            os.write(2, b"out of memory\\n")
            os._exit(9)
        if task["drafting"] == "sleep":
            time.sleep(60)
        on_token()
        last = task["prompt"][-1]
        return [last + place + 1 for place in range(task["max_tokens"])]
"""
OPEN = IdleGate(0.0, True, lambda: None, lambda _seconds: None)


@pytest.fixture
def scripted(tmp_path: Path) -> Path:
    path = tmp_path / "scripted.py"
    path.write_text(SCRIPTED)
    return path


def options(dtype: str = "float32") -> PeerOptions:
    return PeerOptions(model="m", draft_model="raise", dtype=dtype, threads=1, max_len=64, cache="c")


def task(drafting: str = "plain") -> PeerTask:
    return PeerTask(prompt=[3, 4], max_tokens=3, end_tokens=[], drafting=drafting)


def test_the_child_needs_nothing_but_the_standard_library(scripted: Path) -> None:
    lines = [
        json.dumps({"dtype": "float32", "draft_model": "raise"}),
        json.dumps({"drafting": "plain", "prompt": [7], "max_tokens": 2}),
    ]
    given = [sys.executable, "-I", "-S", str(CHILD), str(scripted)]
    done = subprocess.run(given, input="\n".join(lines), capture_output=True, text=True, timeout=60, check=True)
    hello, answer = map(json.loads, done.stdout.splitlines())
    assert hello == {"version": "1", "draftings": ["plain", "raise"]}
    assert answer["tokens"] == [8, 9]
    assert 0 <= answer["first_seconds"] <= answer["seconds"]
    assert "peers print what they like" in done.stderr


def test_a_peer_that_fails_says_why_and_goes_on(scripted: Path) -> None:
    with PeerProcess(scripted, sys.executable, options()) as peer:
        with pytest.raises(PeerFailed, match="RuntimeError: cannot draft"):
            peer.answer(task("raise"))
        assert peer.answer(task()).tokens == [5, 6, 7]
        with pytest.raises(PeerFailed, match=r"status 9: out of memory"):
            peer.answer(task("exit"))
        with pytest.raises(PeerFailed, match="status 9"):
            peer.answer(task())


def test_a_peer_that_hangs_is_given_up(scripted: Path) -> None:
    with PeerProcess(scripted, sys.executable, options()) as peer:
        with pytest.raises(PeerFailed, match=r"within 0\.1 s"):
            peer.answer(task("sleep"), limit=0.1)
        with pytest.raises(PeerFailed, match="ended"):
            peer.answer(task())


def test_a_peer_that_is_missing_is_told_from_one_that_fails(scripted: Path) -> None:
    with pytest.raises(PeerMissing, match="a_package_that_nobody_has"):
        PeerProcess(scripted, sys.executable, options("bfloat16"))
    with pytest.raises(PeerMissing, match="cannot be started"):
        PeerProcess(scripted, "/nowhere/python", options())
    with pytest.raises(PeerFailed, match=r"^ValueError: no int8 here$"):
        PeerProcess(scripted, sys.executable, options("int8"))


def test_a_row_has_every_prompts_answer_or_is_left_out_with_the_reason(scripted: Path) -> None:
    ask = Ask(prompts=[[3], [10], [20]], max_tokens=4, end_tokens=[])
    with (
        PeerProcess(scripted, sys.executable, options()) as one,
        PeerProcess(scripted, sys.executable, options()) as two,
    ):
        plain = Rounds(OPEN, ask).measure("float32", {"gander": one, "other": two}, True, ["third is left out"])
        assert [row.drafting for row in plain.rows] == ["plain", "plain"]
        assert [[answer.tokens[0] for answer in row.answers] for row in plain.rows] == [[4, 11, 21]] * 2
        assert plain.left_out == ["third is left out"]
        drafted = Rounds(OPEN, ask).measure("code", {"gander": one}, False, [])
    assert [row.drafting for row in drafted.rows] == ["plain"]
    assert drafted.left_out == ["gander, raise, is left out: RuntimeError: cannot draft"]


def gate(shares: list[float], patience: float, goes_on: bool) -> IdleGate:
    """Of a machine of which others take so much, reading for reading."""
    readings = [ProcessorTimes(0.0, 0.0)]
    for share in shares:
        before = readings[-1]
        readings += [ProcessorTimes(before.busy + share, before.total + 1.0)] * 2
    return IdleGate(patience, goes_on, iter(readings).__next__, lambda _seconds: None)


def test_the_gate_opens_in_an_idle_moment() -> None:
    gate([0.9, 0.5, 0.05], 60.0, False).wait()


def test_the_gate_waits_no_longer_than_its_patience_and_says_so() -> None:
    with pytest.raises(MachineBusy, match=r"took 80% of the processor, and 0.5 s of waiting .* --busy"):
        gate([0.9, 0.8, 0.0], 2 * SAMPLE_SECONDS, False).wait()
    gate([0.9, 0.8], 2 * SAMPLE_SECONDS, True).wait()


def test_what_others_took_is_what_we_did_not(tmp_path: Path) -> None:
    readings = iter([ProcessorTimes(5.0, 12.0)])
    quiet = IdleGate(0.0, True, readings.__next__, lambda _seconds: None)
    assert quiet.others_since(ProcessorTimes(1.0, 2.0), 3.0) == pytest.approx(0.1)
    assert OPEN.others_since(None, 1.0) is None
    stat = tmp_path / "stat"
    stat.write_text("cpu  100 0 100 500 100 0 0 200 99 99\ncpu0 1 1\n")
    times = read_processor_times(stat)
    assert times is not None
    assert times.busy / times.total == pytest.approx(0.4)
    assert read_processor_times(tmp_path / "none") is None


def row(peer: str, decode: list[float], drafting: str = "plain", tokens: tuple[int, ...] = (1, 2, 3, 4, 5)) -> Row:
    """Prefill takes a tenth of a second, and each token after the first 1 / decode."""
    answers = [
        PeerAnswer(tokens=list(tokens), seconds=0.1 + 4 / rate, first_seconds=0.1, cpu_seconds=1.0) for rate in decode
    ]
    return Row(peer=peer, version="1", drafting=drafting, prompt_lens=[10] * len(decode), answers=answers)


def test_the_table_of_plain_decoding_has_medians_of_ratios_round_by_round() -> None:
    rows = [row("gander", [40, 20, 40]), row("other", [20, 20, 40], tokens=(1, 2, 9, 4, 5))]
    page = render_plain([Setting(name="float32", rows=rows, left_out=["third is left out: so"], others=[0.1, 0.3])])
    assert "| float32 | gander | 100 | 40.0 |  |  |  |" in page
    assert "| float32 | other | 100 | 20.0 | 1.00 | 1.00 | 40% |" in page
    assert "- float32: third is left out: so" in page
    assert "Other work took 20% of the processor's time in the median of the answers, 30% at the most." in page


def test_the_table_of_drafting_holds_our_best_against_theirs() -> None:
    ours = row("gander", [40.0] * 3, "auto")
    ours.answers[:] = [
        PeerAnswer(
            **{
                **{name: getattr(each, name) for name in each.__struct_fields__},
                "steps": 2,
                "phase_seconds": {"forward": 0.05},
            }
        )
        for each in ours.answers
    ]
    rows = [row("gander", [20.0] * 3), ours, row("other", [20.0] * 3), row("other", [10.0] * 3, "lookup")]
    page = render_drafted([Setting(name="code", rows=rows, left_out=[], others=[])])
    assert "| code | gander | auto | 25 | 40 | 1.50 |  | 100% |" in page
    assert "| code | other | lookup | 10 | 10 | 0.60 | 2.50 | 100% |" in page
    assert "code: ours with auto runs 1.50 times the best peer's, other with plain." in page
    assert "| code, auto | 2.00 | 25.00 |" in page


def test_replies_of_other_lengths_agree_as_far_as_they_go() -> None:
    assert agreement(row("a", [1.0], tokens=(1, 2)), row("b", [1.0], tokens=(1, 2, 3, 4))) == 0.5


def test_nobody_to_measure_is_told_on_the_page() -> None:
    page = render_plain([Setting(name="int8", rows=[], left_out=["other is left out: none"], others=[])])
    assert "Nobody could be measured." in page
    assert "- int8: other is left out: none" in page


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    tiny("llama", 3).save_pretrained(folder)
    Tokenizer(WordLevel({f"w{token}": token for token in range(VOCAB_SIZE)}, unk_token="w0")).save(
        str(folder / "tokenizer.json")
    )
    return folder


def asked_of(model: Path, dtype: str) -> dict[str, object]:
    given = PeerOptions(model=str(model), draft_model=None, dtype=dtype, threads=1, max_len=64, cache="c")
    return msgspec.to_builtins(given)  # type: ignore[no-any-return]


@pytest.mark.slow
def test_our_adapter_and_that_of_transformers_give_the_same_tokens(model: Path) -> None:
    given = asked_of(model, "float32") | {"draft_model": str(model)}
    ours, theirs = (runpy.run_path(str(command.ADAPTERS[name]))["Peer"](given) for name in ("gander", "transformers"))
    assert ours.draftings == ["plain", "prompt lookup", "draft model", "auto"]
    assert theirs.draftings == ["plain", "prompt lookup", "assistant model"]
    asked = {"prompt": [5, 9, 5, 9, 5, 9], "max_tokens": 12, "end_tokens": []}
    moments: list[float] = []
    replies = [
        peer.answer({**asked, "drafting": drafting}, lambda: moments.append(time.perf_counter()))
        for peer in (ours, theirs)
        for drafting in peer.draftings
    ]
    assert len(replies[0]) == 12
    assert all(reply == replies[0] for reply in replies)
    assert len(moments) >= len(replies)
    ended = [
        peer.answer({**asked, "end_tokens": [replies[0][3]], "drafting": "plain"}, lambda: None)
        for peer in (ours, theirs)
    ]
    end = replies[0].index(replies[0][3]) + 1
    assert ended == [replies[0][:end]] * 2
    assert 0 < ours.steps < 12
    assert ours.phase_seconds["forward"] > 0


def test_weights_that_we_or_transformers_do_not_have_are_refused(model: Path) -> None:
    with pytest.raises(ValueError, match="no int8 weights"):
        runpy.run_path(str(command.ADAPTERS["transformers"]))["Peer"](asked_of(model, "int8"))


@pytest.mark.slow
def test_the_command_writes_a_page_and_says_who_is_missing(tmp_path: Path, model: Path, scripted: Path) -> None:
    given = ["plain", "--dtypes", "float32", "--rounds", "2", "--prompt-len", "8", "--max-tokens", "6", "--busy"]
    given += ["--patience", "0", "--model", str(model), "--out", str(tmp_path)]
    found = command.Contenders({"gander": scripted, "other": scripted}, {"other": "/nowhere/python"})
    assert command.PeersComparison(command.parse(given), found, "the command", Console(quiet=True), tmp_path).run() == 0
    page = (tmp_path / "peers.md").read_text()
    assert page.count(f"| {model.name}, float32 | gander |") == 1
    assert "other is left out, since it is not installed: /nowhere/python cannot be started" in page
    figures = json.loads((tmp_path / "peers.json").read_text())[f"{model.name} plain"]["figures"]
    assert figures[0]["rows"][0]["peer"] == "gander"


def test_a_part_or_peer_that_is_none_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.main(["fancy", "--peers", "vllm"])
    assert "fancy, vllm: not one of" in capsys.readouterr().err
