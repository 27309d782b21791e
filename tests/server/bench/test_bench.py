"""The whole command, against a server in front of the scripted worker, and the processes it starts."""

import json
import signal
import subprocess
import sys
from base64 import b64decode
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from typer.testing import CliRunner

from server.bench.call import Call
from server.bench.errors import StartError
from server.bench.measured_server import MeasuredServer
from server.bench.started_servers import free_port, running
from server.cli import app
from tests.server.servers import PATIENCE, RunningServer


def bench(*flags: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["bench", "serve", *flags])
    return result.exit_code, result.output


def rows_of(path: Path) -> list[dict[str, str]]:
    """All rows of all tables in a Markdown file, by heading."""
    found, head = [], []
    for line in path.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("|"):
            head = []
        elif not head:
            head = cells
        elif not cells[0].startswith("---"):
            found.append(dict(zip(head, cells, strict=True)))
    return found


def test_two_servers_are_compared_and_their_replies_are_the_same(server: RunningServer, tmp_path: Path) -> None:
    out, prompts = tmp_path / "tables.md", tmp_path / "prompts.jsonl"
    prompts.write_text("\n".join(json.dumps({"prompt": f"Tell me about number {number}."}) for number in range(50)))
    servers = ("--url", server.url, "--url", f"{server.url}/v1", "--api-key", "secret")
    load = ("--clients", "2,3", "--num-requests", "6", "--turns", "2", "--max-tokens", "9", "--prompts", str(prompts))
    status, output = bench(*servers, *load, "--out", str(out))
    assert status == 0, output
    rows = rows_of(out)
    assert [(row["clients"], row["requests"]) for row in rows[:4]] == [("2", "6")] * 2 + [("3", "6")] * 2
    assert all(row["same replies"] == "6 of 6" for row in rows[:4])
    assert all(float(row["tokens/s"]) > 0 for row in rows[:4])
    turns = rows[4:]
    assert [row["turn"] for row in turns] == ["1", "2"] * 4
    assert float(turns[1]["prompt tokens"]) > float(turns[0]["prompt tokens"]), "a turn has the history before it"
    text = out.read_text()
    assert "`gander bench serve --url" in text
    assert "secret" not in text


def test_a_late_prompt_has_as_many_tokens_as_it_was_given(server: RunningServer, tmp_path: Path) -> None:
    out, prompts = tmp_path / "tables.md", tmp_path / "prompts.jsonl"
    prompts.write_text(json.dumps({"prompt": json.dumps({"delay": 0.005, "per_step": 1})}))
    before = server.metric("vllm:prompt_tokens_total")
    flags = ("--late-prompt", "500", "--clients", "2", "--max-tokens", "2000", "--prompts", str(prompts))
    status, output = bench("--url", server.url, *flags, "--out", str(out))
    assert status == 0, output
    (row,) = rows_of(out)
    assert (row["streams"], row["late prompt tokens"]) == ("2", "500")
    assert "–" not in row["gaps before ms p50 / p99 / max"]
    assert server.metric("vllm:prompt_tokens_total") - before >= 500


def test_prompts_go_as_the_first_servers_tokens(
    server: RunningServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, stream = [], MeasuredServer.stream

    async def recorded(self: MeasuredServer, call: Call, body: dict[str, Any]) -> None:
        asked.append(body["prompt"])
        await stream(self, call, body)

    monkeypatch.setattr(MeasuredServer, "stream", recorded)
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(json.dumps({"prompt": "Goslings"}))
    flags = ("--clients", "1", "--num-requests", "2", "--prompts", str(prompts), "--endpoint", "token-ids")
    status, output = bench("--url", server.url, "--url", server.url, *flags)
    assert status == 0, output
    assert set(asked) == {tuple(b"Goslings")}


def test_pictures_come_first_and_no_two_conversations_share_one(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[dict[str, Any]]] = []

    async def recorded(_: MeasuredServer, call: Call, body: dict[str, Any]) -> None:
        asked.append(list(body["messages"]))
        call.content = "yes"

    monkeypatch.setattr(MeasuredServer, "stream", recorded)
    flags = ("--clients", "1", "--num-requests", "4", "--turns", "2", "--images", "3", "--image-side", "20")
    bench("--url", server.url, *flags)
    firsts = [messages[0]["content"] for messages in asked if len(messages) == 1]
    assert [[part["type"] for part in content] for content in firsts] == [["image_url"] * 3 + ["text"]] * len(firsts)
    assert all(isinstance(messages[2]["content"], str) for messages in asked if len(messages) > 1)
    assert len(asked) == 2 * len(firsts)
    urls = [part["image_url"]["url"] for content in firsts for part in content[:-1]]
    assert len(set(urls)) == len(urls) >= 6
    image = Image.open(BytesIO(b64decode(urls[0].partition(",")[2])))
    assert (image.format, image.size) == ("JPEG", (20, 20))


def test_failed_requests_are_told_and_make_the_status_1(server: RunningServer, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(json.dumps({"prompt": json.dumps({"reject": "not today"})}))
    flags = ("--clients", "2", "--num-requests", "3", "--prompts", str(prompts), "--endpoint", "completions")
    status, output = bench("--url", server.url, *flags)
    assert status == 1
    assert "3 requests failed" in output
    assert "not today" in output


def test_a_server_that_is_not_there_is_told(tmp_path: Path) -> None:
    status, output = bench("--url", f"http://127.0.0.1:{free_port()}", "--prompts", str(tmp_path / "none.jsonl"))
    assert status == 1
    assert "does not answer" in output


def test_a_started_process_lasts_as_long_as_the_block(tmp_path: Path) -> None:
    (tmp_path / "ready").write_text("yes")
    port = free_port()
    command = (sys.executable, "-m", "http.server", str(port), "--bind", "127.0.0.1", "--directory", str(tmp_path))
    url = f"http://127.0.0.1:{port}"
    with running(command, f"{url}/ready"):
        status, output = bench("--url", url)
        assert (status, "answered 404" in output) == (1, True), output
    assert "does not answer" in bench("--url", url)[1]


def test_a_process_that_ends_before_it_is_ready_is_told_with_its_last_words() -> None:
    command = (sys.executable, "-c", "print('no such model')")
    with pytest.raises(StartError, match="no such model"), running(command, "http://127.0.0.1:1/ready"):
        pass


def test_a_started_process_is_gone_when_the_benchmark_is_told_to_end(tmp_path: Path) -> None:
    (tmp_path / "ready").write_text("yes")
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    serving = (sys.executable, "-m", "http.server", str(port), "--bind", "127.0.0.1", "--directory", str(tmp_path))
    code = (
        "import time\nfrom server.bench.started_servers import running\n"
        f"with running({serving!r}, {url + '/ready'!r}):\n    print('up', flush=True)\n    time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        process.terminate()
        assert process.wait(PATIENCE) == 128 + signal.SIGTERM
    assert "does not answer" in bench("--url", url)[1]


def test_an_address_that_is_none_is_told() -> None:
    status, output = bench("--url", "127.0.0.1:8000")
    assert (status, "no address" in output) == (1, True)
