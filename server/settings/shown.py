"""Settings as lines of gander.toml, each with where its value comes from. Invariant: no API key is among them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from server.settings.file import SECRETS, key_of

COLUMN = 48  # where the sources begin


def shown(settings: BaseModel, origins: Mapping[str, str], names: Sequence[str]) -> Iterator[str]:
    """A line for each of the settings `names`. origins: of those that are no defaults."""
    for name in names:
        key, value = key_of(name), getattr(settings, name)
        line = f"# {key} is not set" if value is None else f"{key} = {_written(value)}"
        if name in SECRETS and value is not None:
            line = f"# {key} is not shown"
        yield f"{line:<{COLUMN}}# {origins.get(name, 'default')}"


def heading(model: str) -> str:
    """The head of a model's table."""
    return f"\n[models.{json.dumps(model, ensure_ascii=False)}]"


def _written(value: Any) -> str:
    """A TOML value: of texts, numbers and truth values those of JSON are ones."""
    return json.dumps(value, ensure_ascii=False)
