"""What agents asked, made small and free of what belongs to one machine: cases of the quick tests.

`make test-agents` writes them anew where GANDER_RECORD is set.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.agents.recorder import Recorded
from tests.agents.scripted import replaced

FOLDER = Path(__file__).parent / "recorded"
LONGEST = 80  # characters of a text that is kept whole; others end with their first sentence or line
FRESH = (  # what is another at every run
    (re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"), "00000000-0000-4000-8000-000000000000"),
    (re.compile(r"\b[0-9a-f]{64}\b"), "0" * 64),
    (re.compile(r"\b(call|fc|rs|msg|ctc)_[0-9a-f]{24,32}"), r"\1_1"),
    (re.compile(r"\b(ses|wd|req)_[0-9A-Za-z]{20,}"), r"\1_1"),
    (re.compile(r"Chunk ID: [0-9a-f]{6}"), "Chunk ID: 000000"),
    (re.compile(r"Wall time: [0-9.]+ seconds"), "Wall time: 0 seconds"),
    (re.compile(r"http://127\.0\.0\.1:\d+"), "http://127.0.0.1:8000"),
)


def messages_of(recorded: Sequence[Recorded], names: Mapping[str, str]) -> list[Any]:
    """What the agent said in each of its requests that generate, the same whenever it does the same."""
    asked = [request.body for request in recorded if request.method == "POST" and request.body]
    return [_same(body.get("messages", body.get("input")), names) for body in asked]


def save(name: str, recorded: Sequence[Recorded], names: Mapping[str, str]) -> None:
    posted = [request for request in recorded if request.method == "POST" and request.body]
    kept = [{"path": request.path, "body": _small(_same(request.body, names))} for request in posted]
    lines = ",\n".join(json.dumps(each, ensure_ascii=False) for each in kept)
    (FOLDER / f"{name}.json").write_text(f"[\n{lines}\n]\n")


def recording(name: str) -> list[dict[str, Any]]:
    loaded: list[dict[str, Any]] = json.loads((FOLDER / f"{name}.json").read_text())
    return loaded


def _same(value: Any, names: Mapping[str, str]) -> Any:
    text = json.dumps(replaced(value, {name: placeholder for placeholder, name in names.items()}))
    for pattern, fixed in FRESH:
        text = pattern.sub(fixed, text)
    return json.loads(text)


def _small(value: Any) -> Any:
    """Long texts are cut, but those that the agent's work is about: its calls and what came of them are short."""
    if isinstance(value, str):
        return value if len(value) <= LONGEST else re.split(r"(?<=[.!?])\s|\n\n", value.strip())[0][:LONGEST]
    if isinstance(value, list):
        return [_small(each) for each in value]
    return {name: _small(each) for name, each in value.items()} if isinstance(value, dict) else value
