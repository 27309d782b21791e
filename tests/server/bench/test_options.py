"""What the flags of `gander bench serve` mean, and what is asked."""

import json
from pathlib import Path

import pytest

from server.bench.conversations import make_conversations, read_rows
from server.bench.errors import PromptFileError
from server.bench.options import parse, split_servers


def test_flags_after_the_dashes_are_a_servers_and_against_begins_the_next() -> None:
    assert split_servers(["--turns", "2"]) == (["--turns", "2"], ((),))
    mine, servers = split_servers(["--rounds", "3", "--", "gosling", "--threads", "1", "--against", "--port", "0"])
    assert (mine, servers) == (["--rounds", "3"], (("gosling", "--threads", "1"), ("--port", "0")))
    assert split_servers(["--against", "--threads", "1"]) == ([], ((), ("--threads", "1")))


def test_a_late_prompt_has_defaults_of_its_own() -> None:
    assert (parse([]).clients, parse([]).max_tokens, parse([]).ignore_eos) == ((1, 8, 32, 64), 128, False)
    late = parse(["--late-prompt", "1900"])
    assert (late.clients, late.max_tokens, late.ignore_eos) == ((8,), 1000, True)


def test_a_round_has_eight_requests_a_client_in_whole_conversations() -> None:
    assert [parse([]).num_conversations(clients) for clients in (1, 8)] == [32, 64]
    assert parse(["--num-requests", "25", "--turns", "10"]).num_conversations(8) == 3


@pytest.mark.parametrize(
    "argv",
    [
        ["--clients", "0"],
        ["--surprise"],
        ["--turns", "2", "--endpoint", "completions"],
        ["--images", "1", "--endpoint", "token-ids"],
        ["--images", "-1"],
        ["--url", "http://127.0.0.1:1", "--", "gosling"],
    ],
)
def test_wrong_flags_end_with_status_2(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(argv)
    assert ended.value.code == 2
    assert "error:" in capsys.readouterr().err


def test_prompt_files_of_three_kinds_are_read(tmp_path: Path) -> None:
    history = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    lines = [
        {"prompt": "one"},
        {"turns": ["two", "and then"], "prompt": "two"},
        {"messages": [*history, {"role": "user", "content": "c"}]},
    ]
    path = tmp_path / "prompts.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    rows = read_rows(path, 9)
    assert [row.turns for row in rows] == [("one",), ("two", "and then"), ("c",)]
    assert rows[2].opening == tuple(history)


def test_a_file_without_prompts_is_refused_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "one"}\n{"text": "two"}\n')
    with pytest.raises(PromptFileError, match="row 2"):
        read_rows(path, 9)
    path.write_text("")
    with pytest.raises(PromptFileError, match="no prompts"):
        read_rows(path, 9)


def test_bundled_prompts_are_all_different_and_conversations_repeat_none() -> None:
    rows = read_rows(None, 30)
    assert len({row.turns for row in rows}) == 30
    conversations = make_conversations(rows, 10, 3, prefix="Be brief.")
    assert len({said for conversation in conversations for said in conversation.turns}) == 30
    assert all(conversation.opening[0]["content"] == "Be brief." for conversation in conversations)


def test_turns_that_a_row_lacks_are_those_of_the_rows_after_it() -> None:
    rows = read_rows(None, 3)
    (first, second) = make_conversations(rows, 2, 2, prefix="")
    assert first.turns == (*rows[0].turns, *rows[1].turns)
    assert second.turns == (*rows[2].turns, *rows[0].turns)
