"""The model that agents are tested with: a server in front of the scripted worker, which follows an agent's script."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.agents.agents import OTHERWISE, Agent
from tests.server.parsing.family_templates import TEMPLATES
from tests.server.servers import make_model_folder

MODEL = "scripted"
THINKS = "{# <think></think> #}"  # by which the server knows that the model does
CONTEXT = 1_000_000  # its tokens are bytes, and agents' prompts have many


def scripted_model(folder: Path, agent: Agent, names: Mapping[str, str], per_step: int) -> Path:
    """The model's folder. per_step: tokens of a step; plain decoding has one, drafting several."""
    turns = {
        "needs": agent.needs,
        "replies": replaced(agent.script(), names),
        "otherwise": OTHERWISE,
        "per_step": per_step,
    }
    template = TEMPLATES["hermes"] + THINKS
    return make_model_folder(folder / MODEL, template, turns=turns, max_model_len=CONTEXT)


def replaced(value: Any, words: Mapping[str, str]) -> Any:
    """The same JSON value with some words replaced by others."""
    text = json.dumps(value)
    for word, other in words.items():
        text = text.replace(word, other)
    return json.loads(text)
