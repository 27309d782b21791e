"""Agents that people use finish a task against this server: `make test-agents` installs and runs them.

Each has a home of its own, no telemetry, and a proxy that answers nothing, so that it reaches this server alone. Plain
decoding gives a token a step and drafting several: an agent must not see the difference.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest

from server.connect.connect import connect
from server.connect.served import ask
from server.connect.tools import TOOLS
from tests.agents.agents import AGENTS, DONE, FILE, RIGHT, WRONG, Agent
from tests.agents.recorder import Recorded, recorder
from tests.agents.recordings import messages_of, save
from tests.agents.scripted import MODEL, replaced, scripted_model
from tests.server.engine_client.test_client import server_process
from tests.server.servers import PATIENCE, wait_until

INSTALLED = os.environ.get("GANDER_AGENTS")
PLACES = ("node_modules/.bin", "aider/bin")
DEAD_PROXY = "http://127.0.0.1:9"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not INSTALLED, reason="GANDER_AGENTS does not say where agents are installed: make test-agents"),
]


@pytest.mark.parametrize("name", sorted(AGENTS))
def test_an_agent_finishes_its_task_and_sees_no_drafting(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "work"
    names = {"<folder>": str(folder), "<model>": MODEL}
    transcripts = []
    for per_step in (1, 7):
        recorded, said = done_by(AGENTS[name], tmp_path, names, per_step)
        assert [(each.path, each.status, each.answer) for each in recorded if each.status != 200] == []
        assert (folder / FILE).read_text() == f"{RIGHT}\n"
        assert (folder / "said.txt").read_text() == "hello\n"
        assert (DONE in said) == bool(AGENTS[name].calls)
        transcripts.append(messages_of(recorded, names))
    plain, drafted = transcripts
    assert drafted == plain
    if "GANDER_RECORD" in os.environ:
        save(name, recorded, names)


def done_by(agent: Agent, place: Path, names: dict[str, str], per_step: int) -> tuple[list[Recorded], str]:
    """What the agent asked and said, in a home and a folder that are new each time."""
    home, folder = place / "home", place / "work"
    for each in (home, folder):
        shutil.rmtree(each, ignore_errors=True)
        each.mkdir()
    (folder / FILE).write_text(f"{WRONG}\n")
    with (
        server_process(scripted_model(place, agent, names, per_step), 5) as (_, address, _),
        recorder(address) as (url, recorded),
    ):
        wait_until(lambda: httpx.get(f"{address}/ready").status_code == 200)
        names = names | {"<home>": str(home)}
        for path, content in agent.files.items():
            (home / path).parent.mkdir(parents=True, exist_ok=True)
            (home / path).write_text(_text(replaced(content, names)))
        tool, served = TOOLS[agent.program], ask(url, None)
        connect(tool, served, home, tool.path is not None, lambda _: None)
        pointed = {name: value.replace("$HOME", str(home)) for name, value in tool.environment(served).items()}
        environment = pointed | replaced(agent.environment, names)
        said = _run([_program(agent), *replaced(agent.command, names)], folder, home, environment)
    return recorded, said


def _text(content: Any) -> str:
    return content if isinstance(content, str) else json.dumps(content)


def _program(agent: Agent) -> str:
    found = shutil.which(agent.program, path=os.pathsep.join(f"{INSTALLED}/{place}" for place in PLACES))
    assert found is not None, f"{agent.program} is not installed in {INSTALLED}"
    return found


def _run(command: list[str], folder: Path, home: Path, environment: dict[str, str]) -> str:
    """What the program says, which must end well and in time."""
    proxies = {"HTTPS_PROXY": DEAD_PROXY, "NO_PROXY": "127.0.0.1,localhost"}
    done = subprocess.run(
        command,
        cwd=folder,
        env={"PATH": os.environ["PATH"], "HOME": str(home), "TERM": "dumb", **proxies, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
