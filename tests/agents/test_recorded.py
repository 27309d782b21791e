"""Every request that an agent sent while it did its task is answered, also without the agent."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from server.config import ServerSettings
from tests.agents.agents import AGENTS, DONE, OTHERWISE
from tests.agents.recordings import FOLDER, recording
from tests.agents.scripted import MODEL, scripted_model
from tests.server.servers import RunningServer, running_server


@pytest.mark.parametrize("name", sorted(path.stem for path in FOLDER.glob("*.json")))
def test_the_requests_of_an_agents_task_are_answered(tmp_path: Path, name: str) -> None:
    agent = AGENTS[name]
    model = scripted_model(tmp_path, agent, {}, per_step=7)
    with running_server(ServerSettings(model=str(model), drain_seconds=1)) as server:
        told = [answer(server, each["path"], each["body"]) for each in recording(name)]
    calls = [call for _, call in told if call is not None]
    assert calls == [{"name": call, "arguments": dict(arguments)} for call, arguments in agent.calls]
    texts = [text.strip() for text, call in told if call is None and text.strip() != OTHERWISE]
    assert texts == [
        *(f"Step 1 of the work.{reply}".strip() for reply in agent.replies),
        *([DONE] if agent.calls else []),
    ]


def test_the_documentation_lists_the_versions_that_are_pinned() -> None:
    pinned = json.loads((FOLDER.parent / "package.json").read_text())["dependencies"]
    pinned |= dict(line.split("==") for line in (FOLDER.parent / "requirements.txt").read_text().split())
    told = (FOLDER.parents[2] / "docs" / "agents.md").read_text()
    missing = [name for name, version in pinned.items() if not re.search(rf"`{name}` \| {version} \|", told)]
    assert missing == []


def answer(server: RunningServer, path: str, body: dict[str, Any]) -> tuple[str, Any]:
    """The text of the plain reply, and its call."""
    body = body | {"model": MODEL, "stream": False}
    body.pop("stream_options", None)
    response = server.http.post(path, json=body)
    assert response.status_code == 200, response.text
    reply = response.json()
    if "choices" in reply:
        message = reply["choices"][0]["message"]
        called = [call["function"] for call in message.get("tool_calls") or []]
        return message["content"] or "", _only(called, json.loads)
    if "output" in reply:
        said = [part["text"] for item in reply["output"] if item["type"] == "message" for part in item["content"]]
        called = [item | {"name": _name(item)} for item in reply["output"] if item["type"] == "function_call"]
        return "".join(said), _only(called, json.loads)
    texts = [block["text"] for block in reply["content"] if block["type"] == "text"]
    return "".join(texts), _only([block for block in reply["content"] if block["type"] == "tool_use"])


def _only(calls: list[dict[str, Any]], read: Any = lambda value: value) -> Any:
    assert len(calls) <= 1
    return {"name": calls[0]["name"], "arguments": read(_arguments(calls[0]))} if calls else None


def _name(call: dict[str, Any]) -> str:
    """The name by which the model is shown the function."""
    return f"{call['namespace']}.{call['name']}" if "namespace" in call else str(call["name"])


def _arguments(call: dict[str, Any]) -> Any:
    return call["arguments"] if "arguments" in call else call["input"]
