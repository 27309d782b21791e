"""`gander bench real`: what is asked, in which order, what becomes of the replies, and how a cut run goes on."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from server.bench.errors import ServerError
from server.bench.measured_server import MeasuredServer
from server.bench.real.figures import Answer, Ratio, Row, Run, Setting, Speed, keep, read_runs, rows_of
from server.bench.real.goals import missed, verdict
from server.bench.real.options import METHODS, parse
from server.bench.real.plot import plot_runs
from server.bench.real.tables import against_table, details, run_table, summary
from server.cli import app
from tests.server.servers import RunningServer

GSM8K = Setting(workload="gsm8k", temperature=0.7)


def bench(*flags: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["bench", "real", *flags])
    return result.exit_code, result.output


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Two of the six files."""
    folder = tmp_path / "data"
    folder.mkdir()
    write(folder / "gsm8k_test.jsonl", [{"prompt": f"What is {number} and 1?"} for number in range(24)])
    write(folder / "mt_bench.jsonl", [{"turns": [f"Write about {number}.", "Again."]} for number in range(6)])
    return folder


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("\n".join(map(json.dumps, rows)))


def recorded(monkeypatch: pytest.MonkeyPatch, most: int = 10_000) -> list[tuple[MeasuredServer, dict[str, Any]]]:
    """What is asked from now on, the warm-up left out. Beyond `most` requests the server answers no more."""
    asked, reply = [], MeasuredServer.reply

    async def recording(self: MeasuredServer, body: dict[str, Any]) -> Any:
        if "warm-up" not in body["session_id"]:
            if len(asked) == most:
                raise ServerError("cut")
            asked.append((self, body))
        return await reply(self, body)

    monkeypatch.setattr(MeasuredServer, "reply", recording)
    return asked


def test_every_prompt_is_answered_by_all_before_the_next(
    server: RunningServer, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = recorded(monkeypatch)
    flags = ("--data", str(data), "--methods", "none,spine", "--prompts", "2", "--rounds", "2", "--max-tokens", "9")
    rows = ("--workloads", "gsm8k", "--temperatures", "0,0.7", "--at-once", "1")
    status, output = bench("--url", server.url, "--url", f"{server.url}/v1", *flags, *rows)
    assert status == 0, output
    assert len(asked) == 2 * 2 * 2 * 4  # temperatures, rounds, prompts, methods on servers
    for begin in range(0, len(asked), 4):
        four = asked[begin : begin + 4]
        assert len({body["messages"][0]["content"] for _, body in four}) == 1
        assert len({(one.label, body["speculation"]["method"]) for one, body in four}) == 4
    orders = {tuple(body["speculation"]["method"] for _, body in asked[b : b + 4]) for b in range(0, len(asked), 4)}
    assert len(orders) > 1
    sessions = {body["session_id"] for _, body in asked}
    assert len(sessions) == 2 * 2 * 4, "one for each temperature, round, server and method"


def test_groups_are_full_and_turns_follow_their_replies(
    server: RunningServer, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = recorded(monkeypatch)
    out = tmp_path / "runs.json"
    flags = ("--data", str(data), "--methods", "none,spine", "--prompts", "2", "--max-tokens", "9", "--out", str(out))
    status, output = bench("--url", server.url, *flags, "--temperatures", "0", "--at-once", "4")
    assert status == 0, output
    (run,) = read_runs(out)
    spine = [run.of(setting)["spine"].to_plain for setting in run.settings]
    assert [(ratio.of, len(ratio.by_group)) for ratio in spine if ratio] == [(4, 1), (3, 1)]
    second = [body["messages"] for _, body in asked if len(body["messages"]) == 3]
    assert len(second) == 2 * 3
    assert all([said["role"] for said in turns] == ["user", "assistant", "user"] for turns in second)
    assert all(turns[1]["content"] for turns in second)


def test_predictions_and_schemas_are_sent(server: RunningServer, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = recorded(monkeypatch)
    write(data / "classeval.jsonl", [{"reference": "def one(): ..."}])
    write(data / "wikitext2_valid_prompts_800c.jsonl", [{"prompt": "A lobster."}])
    rows = ("--workloads", "edit,json", "--temperatures", "0", "--at-once", "1", "--methods", "none")
    status, output = bench("--url", server.url, "--data", str(data), "--max-tokens", "9", *rows)
    assert status == 0, output
    (_, edit), (_, record) = asked
    assert "def one(): ..." in edit["prediction"]["content"]
    assert record["response_format"]["json_schema"]["schema"]["required"][0] == "title"


def test_a_cut_run_goes_on_where_it_stopped(
    server: RunningServer, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "runs.json"
    flags = ("--url", server.url, "--data", str(data), "--methods", "none,spine", "--max-tokens", "9")
    flags += ("--workloads", "gsm8k", "--prompts", "2", "--at-once", "1", "--out", str(out))
    with monkeypatch.context() as cut:
        recorded(cut, most=2 * 2 + 1)
        status, output = bench(*flags, "--temperatures", "0,0.7,1")
    assert (status, "cut" in output) == (1, True)
    (run,) = read_runs(out)
    assert [setting.temperature for setting in run.settings] == [0.0]
    asked = recorded(monkeypatch)
    assert bench(*flags, "--temperatures", "0,0.7,1")[0] == 0
    assert [body["temperature"] for _, body in asked] == [0.7] * 4 + [1.0] * 4
    (run,) = read_runs(out)
    assert [setting.temperature for setting in run.settings] == [0.0, 0.7, 1.0]
    asked.clear()
    assert bench(*flags, "--temperatures", "0,0.7,1")[0] == 0
    assert asked == []
    for methods in ("none", "none,spine"):
        assert bench(*flags, "--name", "other", "--temperatures", "0", "--methods", methods)[0] == 0
    assert len(asked) == 2 + 2 * 2, "a row without one of the methods is measured again"


def test_a_run_is_kept_with_what_made_it_and_replaced_only_when_asked(
    server: RunningServer, data: Path, tmp_path: Path
) -> None:
    out = tmp_path / "runs.json"
    flags = ("--url", server.url, "--data", str(data), "--methods", "none,spine", "--max-tokens", "9")
    flags += ("--at-once", "1", "--temperatures", "0", "--out", str(out), "--api-key", "hidden")
    for prompts, name in (("4", "Toy"), ("2", "Another")):
        status, output = bench(*flags, "--name", name, "--prompts", prompts)
        assert status == 0, output
    status, output = bench(*flags, "--name", "Toy", "--prompts", "2")
    assert status == 1
    assert "has rows of Toy" in output
    assert "whose prompts is 4 and not 2" in output
    status, output = bench(*flags, "--name", "Toy", "--prompts", "3", "--anew", "--note", "second")
    assert status == 0, output
    toy, another = read_runs(out)
    assert (toy.model, toy.note, toy.prompts, another.model) == ("Toy", "second", 3, "Another")
    assert "gander bench real --url" in toy.command
    assert "hidden" not in toy.command
    assert str(tmp_path) not in toy.command
    assert "torch" in toy.machine
    row = toy.of(Setting(workload="mt_bench", temperature=0.0))["spine"]
    assert row.to_plain is not None
    assert (row.to_plain.differ, row.to_plain.of, row.to_plain.times) == (0, 3, 1.0)
    assert row.speed.tau == 3.0  # the scripted worker gives three tokens a step


def answer(*token_ids: int, seconds: float, steps: int = 1) -> Answer:
    return Answer(list(token_ids), len(token_ids) - 1, steps, seconds)


def test_the_replies_of_all_turns_are_one_answer() -> None:
    replies = [
        {"choices": [{"token_ids": ids, "speculation": {"steps": 2, "decode_seconds": seconds}}]}
        for ids, seconds in (([1, 2, 3], 1.0), ([4], 0.0), ([5, 6], 0.5))
    ]
    assert Answer.of(replies) == Answer([1, 2, 3, 4, 5, 6], 3, 6, 1.5)


def test_speeds_are_pooled_and_ratios_are_medians_over_groups() -> None:
    plain = [[answer(1, 2, 3, seconds=2.0, steps=3)], [answer(4, 5, seconds=1.0, steps=2)], [answer(6, seconds=0.0)]]
    fast = [[answer(1, 2, 3, seconds=0.5, steps=1)], [answer(4, 9, seconds=0.5, steps=2)], [answer(6, seconds=0.0)]]
    slow = [[answer(1, 2, 3, seconds=1.0, steps=3)], [answer(4, 9, seconds=0.5, steps=2)], [answer(7, seconds=0.0)]]
    none, auto = rows_of(GSM8K, {"none": [plain, plain], "auto": [fast, slow]})
    assert none.to_plain is None
    assert (none.speed.tau, none.speed.tokens_per_second) == (1.0, 1.0)
    assert auto.to_plain is not None
    assert (auto.to_plain.by_group, auto.to_plain.times) == ([4.0, 2.0, None], 3.0)
    assert (auto.to_plain.differ, auto.to_plain.of) == (1, 3)
    assert auto.to_against is not None
    assert (auto.to_against.by_group[:2], auto.to_against.differ) == ([2.0, 1.0], 1)
    run = run_of(none, auto)
    assert run_table(run).rows == [("GSM8K", "0.7", "1", "1.0", "3.00 (1.50)", "–", "1 of 3")]
    assert against_table(run).rows[1] == ("GSM8K", "0.7", "1", "auto", "3.0", "2.0", "1.50", "1 of 3")


def test_a_group_is_as_long_as_its_longest_reply() -> None:
    plain = [[answer(1, 2, 3, seconds=2.0), answer(4, 5, seconds=1.0)]]
    fast = [[answer(1, 2, 3, seconds=0.5), answer(4, 5, seconds=1.0)]]
    none, auto = rows_of(Setting(workload="edit", temperature=0, at_once=2), {"none": [plain], "auto": [fast]})
    assert (none.speed.tokens_per_second, auto.speed.tokens_per_second) == (1.5, 3.0)
    assert auto.to_plain is not None
    assert (auto.to_plain.times, auto.to_plain.of) == (2.0, 2)


def run_of(*rows: Row) -> Run:
    return Run(
        model="Toy",
        weights="float32",
        machine="a machine",
        versions=["1"],
        command="gander bench real",
        note="",
        prompts=2,
        rounds=1,
        max_tokens=9,
        rows=list(rows),
    )


def row(setting: Setting, method: str, *by_group: float) -> Row:
    times = sorted(by_group)[len(by_group) // 2]
    ratio = Ratio(times=times, differ=0, of=len(by_group), by_group=list(by_group))
    kept = msgspec.structs.asdict(setting)
    return Row(**kept, method=method, speed=Speed(tau=2.0, tokens_per_second=10.0 * times), to_plain=ratio)


def test_auto_is_held_against_the_best_single_method_and_against_none() -> None:
    slow = Setting(workload="edit", temperature=0.0, at_once=4)
    run = run_of(
        *(row(GSM8K, "auto", 2.0, 3.0, 2.0), row(GSM8K, "spine", 1.0, 2.0, 1.0), row(GSM8K, "stand", 0.5, 9.0, 0.9)),
        *(row(slow, "auto", 0.9, 0.9, 0.9), row(slow, "spine", 1.0, 1.0, 1.0)),
    )
    told = verdict(run, GSM8K)
    assert told is not None
    assert (told.over_none, told.best, told.over_best, told.misses) == (2.0, "spine", 2.0, [])
    assert missed(run) == [
        "edit a file, T=0, 4 at once: auto is 0.90 × none (goal 1) and 0.90 × spine (goal 0.97).",
    ]
    level = run_of(row(GSM8K, "auto", 2.0), row(GSM8K, "spine", 2.0))
    assert missed(level) == [
        "Over all 1 rows with one request at a time the median of auto over the best single method is 1.00; the goal "
        "is 1.03."
    ]
    assert missed(run_of(row(GSM8K, "spine", 2.0))) == []
    assert run_table(run).rows[0][-2:] == ("2.00 (spine)", "0 of 9")
    assert "| 0.90 (spine)* | 0 of 6 |" in details([run]), "a star marks a row that misses a goal"
    assert "| 1.00 (spine) |\n\nIn every row: at once 1, differ from none 0 of 2.\n\nOver all 1 rows" in details(
        [level]
    )
    assert "| Toy | float32 | – | 2.00 |" in summary([run]), "the README tells of one request at a time"


def test_what_is_measured_again_takes_the_place_of_what_was(tmp_path: Path) -> None:
    path, run = tmp_path / "runs.json", run_of(row(GSM8K, "auto", 2.0))
    run.take(GSM8K, [row(GSM8K, "auto", 3.0), row(GSM8K, "spine", 1.0)])
    keep(path, run)
    (kept,) = read_runs(path)
    assert [one.method for one in kept.rows] == ["auto", "spine"]
    plot_runs([kept], tmp_path / "picture.svg")
    assert "GSM8K" in (tmp_path / "picture.svg").read_text()


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ((), "name a model to serve after --"),
        (("--url", "u", "--", "gosling"), "cannot be given with it"),
        (("--", "a", "--against", "b", "--against", "c"), "at most two servers"),
        (("--", "a", "--against"), "name a model to serve"),
        (("--methods", "none,auto-x", "--", "a"), "'auto-x' is neither METHOD nor METHOD-NODES"),
    ],
)
def test_flags_that_do_not_go_together_are_told(
    flags: tuple[str, ...], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parse(("--data", "d", *flags))
    assert sentence in capsys.readouterr().err


def test_groups_of_requests_at_once_are_full() -> None:
    options = parse(("--data", "d", "--", "gosling", "--weights", "int8"))
    assert options.server_flags == (("gosling", "--weights", "int8"),)
    assert [options.num_prompts(at_once) for at_once in options.at_once] == [12, 12, 16]


def test_a_method_may_be_given_trees_of_a_size(
    server: RunningServer, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = recorded(monkeypatch)
    flags = ("--methods", "auto,auto-8,spine,spine-3", "--prompts", "1", "--max-tokens", "5")
    rows = ("--workloads", "gsm8k", "--temperatures", "0", "--at-once", "1")
    status, output = bench("--url", server.url, "--data", str(data), *flags, *rows)
    assert status == 0, output
    nodes = {(body["speculation"]["method"], body["speculation"].get("max_nodes")) for _, body in asked}
    assert nodes == {("auto", None), ("auto", 8), ("spine", None), ("spine", 3)}
    assert len({body["session_id"] for _, body in asked}) == 4


def test_a_method_that_the_server_does_not_have_is_told(server: RunningServer, data: Path) -> None:
    status, output = bench("--url", server.url, "--data", str(data), "--methods", "none,dynamic")
    assert status == 1
    assert "dynamic" in output


@pytest.mark.slow
def test_the_bundled_model_is_served_and_every_method_gives_the_plain_tokens(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "runs.json"
    rows = ("--temperatures", "0.7", "--at-once", "1,2", "--prompts", "2", "--max-tokens", "24", "--out", str(out))
    status, output = bench("--data", str(data), *rows, "--", "gosling", "--threads", "1", "--device", "cpu")
    assert status == 0, output
    (run,) = read_runs(out)
    assert run.model == "gosling"
    assert len(run.settings) == 4
    for setting in run.settings:
        assert list(run.of(setting)) == list(METHODS), "gosling has a draft model of its own"
        assert sum(one.to_plain.differ for one in run.of(setting).values() if one.to_plain) == 0
    assert "auto × best" in output
