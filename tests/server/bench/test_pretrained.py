"""`gander bench pretrained`: what is asked, in which order, and what becomes of the replies."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from server.bench.errors import PromptFileError
from server.bench.measured_server import MeasuredServer
from server.bench.pretrained.figures import Answer, read_runs, rows_of
from server.bench.pretrained.prompts import LONGEST_EDIT, read_prompts
from server.bench.pretrained.tables import run_table
from server.cli import app
from tests.server.servers import RunningServer


def bench(*flags: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["bench", "pretrained", *flags])
    return result.exit_code, result.output


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Two of the four files."""
    folder = tmp_path / "data"
    folder.mkdir()
    write(folder / "gsm8k_test.jsonl", [{"prompt": f"What is {number} and 1?"} for number in range(12)])
    write(folder / "mt_bench.jsonl", [{"prompt": f"Write about {number}."} for number in range(3)])
    return folder


def write(path: Path, rows: list[dict[str, str]]) -> None:
    path.write_text("\n".join(map(json.dumps, rows)))


def recorded(monkeypatch: pytest.MonkeyPatch) -> list[tuple[MeasuredServer, dict[str, Any]]]:
    """What is asked from now on, the warm-up left out."""
    asked, reply = [], MeasuredServer.reply

    async def recording(self: MeasuredServer, body: dict[str, Any]) -> Any:
        if "warm-up" not in body["session_id"]:
            asked.append((self, body))
        return await reply(self, body)

    monkeypatch.setattr(MeasuredServer, "reply", recording)
    return asked


def test_every_prompt_is_answered_by_all_before_the_next(
    server: RunningServer, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = recorded(monkeypatch)
    flags = ("--data", str(data), "--methods", "none,spine", "--prompts", "2", "--rounds", "2", "--max-tokens", "9")
    status, output = bench("--url", server.url, "--against", f"{server.url}/v1", *flags)
    assert status == 0, output
    assert len(asked) == 2 * 2 * 2 * 2 * 4  # workloads, temperatures, rounds, prompts, methods on servers
    for begin in range(0, len(asked), 4):
        four = asked[begin : begin + 4]
        assert len({body["messages"][0]["content"] for _, body in four}) == 1
        assert len({(one.label, body["speculation"]["method"]) for one, body in four}) == 4
    orders = {tuple(body["speculation"]["method"] for _, body in asked[b : b + 4]) for b in range(0, len(asked), 4)}
    assert len(orders) > 1
    sessions = {body["session_id"] for _, body in asked}
    assert len(sessions) == 2 * 2 * 2 * 4, "one for each workload, temperature, round, server and method"


def test_a_run_is_kept_with_what_made_it_and_replaced_by_the_next(
    server: RunningServer, data: Path, tmp_path: Path
) -> None:
    out = tmp_path / "runs.json"
    flags = (
        "--url",
        server.url,
        "--data",
        str(data),
        "--methods",
        "none,spine",
        "--max-tokens",
        "9",
        "--out",
        str(out),
    )
    for note, name in (("first", "Toy"), ("second", "Toy"), ("third", "Another")):
        status, output = bench(*flags, "--api-key", "hidden", "--temperatures", "0", "--name", name, "--note", note)
        assert status == 0, output
    second, third = read_runs(out)
    assert (second.model, second.note, third.model, third.note) == ("Toy", "second", "Another", "third")
    assert "gander bench pretrained --url" in second.command
    assert "hidden" not in second.command
    assert str(tmp_path) not in second.command
    assert "torch" in second.machine
    assert [(row.workload, row.method) for row in second.rows] == [
        (workload, method) for workload in ("gsm8k", "mt_bench") for method in ("none", "spine")
    ]
    row = second.find("mt_bench", 0.0, "spine")
    assert row is not None
    assert row.to_plain is not None
    assert (row.to_plain.differ, row.to_plain.of, row.to_plain.times) == (0, 3, 1.0)
    assert row.speed.tau == 3.0  # the scripted worker gives three tokens a step


def answer(*token_ids: int, seconds: float, steps: int = 1) -> Answer:
    return Answer(list(token_ids), steps, seconds)


def test_speeds_are_pooled_and_ratios_are_medians_over_prompts() -> None:
    plain = [answer(1, 2, 3, seconds=2.0, steps=3), answer(4, 5, seconds=1.0, steps=2), answer(6, seconds=0.0)]
    fast = [answer(1, 2, 3, seconds=0.5, steps=1), answer(4, 9, seconds=0.5, steps=2), answer(6, seconds=0.0)]
    slow = [answer(1, 2, 3, seconds=1.0, steps=3), answer(4, 9, seconds=0.5, steps=2), answer(7, seconds=0.0)]
    none, auto = rows_of("gsm8k", 0.7, {"none": [plain, plain], "auto": [fast, slow]})
    assert none.to_plain is None
    assert (none.speed.tau, none.speed.tokens_per_second) == (1.0, 1.0)
    assert auto.to_plain is not None
    assert (auto.to_plain.by_prompt, auto.to_plain.times) == ([4.0, 2.0], 3.0)
    assert (auto.to_plain.differ, auto.to_plain.of) == (1, 3)
    assert auto.to_against is not None
    assert (auto.to_against.by_prompt, auto.to_against.differ) == ([2.0, 1.0], 1)
    shown = run_table([none, auto]).rows[1]
    assert shown == ("GSM8K", "0.7", "auto", "1.50", "3.0", "3.00", "1 of 3", "1.00", "2.0", "1.50", "1.50", "1 of 3")
    assert len(run_table(rows_of("gsm8k", 0.0, {"none": [plain]})).head) == 7


def test_prompts_are_spread_over_their_file_and_long_programs_are_passed_over(data: Path) -> None:
    programs = ["x" * (LONGEST_EDIT + 1), "def one(): ...", "def two(): ..."]
    write(data / "classeval.jsonl", [{"reference": program} for program in programs])
    found = read_prompts(data, ("gsm8k", "humaneval", "edit"), 4)
    assert list(found) == ["gsm8k", "edit"], "a workload without a file is left out"
    assert [prompt.split("?")[0] for prompt in found["gsm8k"]] == [f"What is {number} and 1" for number in (0, 3, 6, 9)]
    assert ["one" in found["edit"][0], "two" in found["edit"][1], len(found["edit"])] == [True, True, 2]


def test_folders_and_workloads_that_are_none_are_told(data: Path, tmp_path: Path) -> None:
    with pytest.raises(PromptFileError, match="has no prompts in"):
        read_prompts(tmp_path, ("gsm8k",), 4)
    with pytest.raises(PromptFileError, match="no workload poems"):
        read_prompts(data, ("gsm8k", "poems"), 4)
    write(data / "humaneval.jsonl", [{"text": "no prompt"}])
    with pytest.raises(PromptFileError, match=r"humaneval\.jsonl has a row"):
        read_prompts(data, ("humaneval",), 4)


def test_a_method_that_the_server_does_not_have_is_told(server: RunningServer, data: Path) -> None:
    status, output = bench("--url", server.url, "--data", str(data), "--methods", "none,dynamic")
    assert status == 1
    assert "dynamic" in output
