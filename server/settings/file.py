"""gander.toml: its keys are the names of flags, and each table [models.NAME] has those of one model.

Knows neither defaults nor what flags and variables say. Invariant: what it returns has names and types of settings.
"""

from __future__ import annotations

import operator
import os
import re
import stat
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import TypeAdapter, ValidationError

from decoding.errors import ConfigError
from server.http.keys import is_hashed
from server.settings.access import AccessSettings
from server.settings.engine import EngineSettings
from server.settings.port import PortSettings
from server.settings.process import ProcessSettings
from server.settings.requests import RequestSettings

FILE_NAME = "gander.toml"
SECRETS = ("api_keys", "admin_keys")  # settings that hold keys
OF_MODELS = EngineSettings.model_fields | RequestSettings.model_fields
FIELDS = OF_MODELS | PortSettings.model_fields | AccessSettings.model_fields | ProcessSettings.model_fields
# What a model's table may not say: what all models of a server share.
OF_THE_SERVER = FIELDS.keys() - OF_MODELS.keys() - {"served_model_name"} | {"unknown_fields", "response_store_bytes"}
NO_NAME = re.compile(r"[,*\s]")


@dataclass(frozen=True, slots=True)
class SettingsFile:
    """values: of the server, and for all its models, by the settings' names in Python; models: of each table by its
    name, in the file's order. path: None where there is no file. has_open_keys: API keys that others than the file's
    owner can read."""

    path: Path | None = None
    values: Mapping[str, Any] = field(default_factory=dict)
    models: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    has_open_keys: bool = False


def default_path() -> Path | None:
    """Where the file is looked for if none is named, by the XDG base directory specification; None without a home."""
    folder = Path(os.environ.get("XDG_CONFIG_HOME", ""))
    try:
        return (folder if folder.is_absolute() else Path.home() / ".config") / "gander" / FILE_NAME
    except RuntimeError:
        return None


def key_of(name: str) -> str:
    """A setting's name as flags and the file have it."""
    return name.replace("_", "-")


def read_settings_file(path: Path) -> SettingsFile:
    """Raises ConfigError with a line for each fault, which names the file and the key."""
    try:
        with path.open("rb") as file:
            mode, content = os.fstat(file.fileno()).st_mode, tomllib.load(file)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path.name} is no TOML: {error}") from error
    faults: list[str] = []
    tables = content.pop("models", {})
    values = _checked(content, "", faults)
    models: dict[str, dict[str, Any]] = {}
    if not isinstance(tables, dict) or not all(isinstance(table, dict) for table in tables.values()):
        faults.append("models: each model has a table [models.NAME]")
        tables = {}
    for name, table in tables.items():
        place = f"models.{name}"
        if not name or NO_NAME.search(name):
            faults.append(f"{place}: a model's name has neither spaces nor commas nor stars")
        if "model" not in table:
            faults.append(f"{place}.model: this is missing: it says where the model is")
        models[name] = _checked(table, f"{place}.", faults)
    if tables:
        faults += [
            f"{key_of(key)}: this belongs into the table of a model, where there are any"
            for key in ("model", "served_model_name")
            if key in values
        ]
    if faults:
        raise ConfigError("\n".join(f"{path.name}: {fault}" for fault in faults))
    keys = ",".join(values.get(name, "") for name in SECRETS).split(",")
    is_shared = mode & (stat.S_IRGRP | stat.S_IROTH) != 0
    return SettingsFile(path, values, models, is_shared and not all(is_hashed(key.strip()) for key in keys if key))


def _checked(table: Mapping[str, Any], place: str, faults: list[str]) -> dict[str, Any]:
    """The table's values by settings' names; what is none is added to `faults`. place: before the keys, of a model."""
    values: dict[str, Any] = {}
    keys = {key_of(name): name for name in FIELDS}
    for key, value in table.items():
        name = keys.get(key)
        if name is None:
            nearest = get_close_matches(key_of(key.lower()), keys, 1)
            advice = f"did you mean {nearest[0]}?" if nearest else "gander serve --help lists them"
            faults.append(f"{place}{key}: no such setting; {advice}")
        elif place and name in OF_THE_SERVER:
            faults.append(f"{place}{key}: this is the server's; it stands above the tables of models")
        else:
            try:
                values[name] = _type_of(name).validate_python(value, strict=True)
            except ValidationError as error:
                faults.append(f"{place}{key}: {error.errors()[0]['msg']}")
    return values


@cache
def _type_of(name: str) -> TypeAdapter[Any]:
    """A setting's type with its bounds. A file's numbers are no text, as a variable's are, and so are checked."""
    found = FIELDS[name]
    return TypeAdapter(operator.getitem(Annotated, (found.annotation, found)))  # type: ignore[arg-type]
