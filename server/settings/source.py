"""How a model is given on the command line: by its source, with a name of its own or without."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

NAMED = re.compile(r"([^\s/\\,*=~.][^\s/\\,*=]*)=(.+)", re.DOTALL)


def settings_of_source(text: str, aliases: str | None) -> Mapping[str, str]:
    """The settings that SOURCE or NAME=SOURCE stands for. aliases: other names of the model, separated by commas. What
    is the path of something is a source, whatever is in it."""
    named = NAMED.fullmatch(text)
    if named is None or _is_there(text):
        return {"model": text}
    return {"model": named[2], "served_model_name": ",".join(filter(None, (named[1], aliases)))}


def _is_there(path: str) -> bool:
    try:
        return Path(path).exists()
    except OSError:  # no path can be written so
        return False
