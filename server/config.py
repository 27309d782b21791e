"""Start-up settings: each is a flag of `gander serve`, a GANDER_* variable and a key of gander.toml, and wins in this
order.

The groups in `server/settings/` own names, defaults and bounds.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError, field_validator
from pydantic_settings import BaseSettings, EnvSettingsSource, SettingsConfigDict

from decoding.errors import ConfigError
from server.settings.access import AccessSettings
from server.settings.engine import EngineSettings
from server.settings.file import SECRETS, SettingsFile, default_path, key_of, read_settings_file
from server.settings.flags import PREFIX
from server.settings.port import PortSettings
from server.settings.process import ProcessSettings
from server.settings.requests import RequestSettings
from server.settings.source import settings_of_source

PATHS = (
    *("model", "draft_model", "draft_head", "tree", "chat_template"),
    *("prefix_dir", "sessions_dir", "sessions_key", "api_key_file"),
)


# Pydantic, and so `gander serve --help`, has the fields of the last group first.
class ServerSettings(ProcessSettings, AccessSettings, RequestSettings, PortSettings, EngineSettings, BaseSettings):
    """Arguments win over variables, variables over defaults."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="forbid", allow_inf_nan=False)

    @field_validator(*PATHS)
    @classmethod
    def _expand_home(cls, path: str | None) -> str | None:
        """Replace a leading ~ once, for all who open the path. A shell does not where a flag is written as --flag=~."""
        return path if path is None or not path.startswith("~") else os.path.expanduser(path)  # noqa: PTH111

    @property
    def model_names(self) -> tuple[str, ...]:
        """The ids under which the model is listed: those given, else the folder's or file's name, or the hub name."""
        return tuple(name for name in self._given_names if "*" not in name) or (self._own_name,)

    @property
    def _own_name(self) -> str:
        folder = Path(self.model)
        try:
            return folder.resolve().name if folder.is_dir() else folder.stem if folder.is_file() else self.model
        except OSError:  # no folder can be called so
            return self.model

    @property
    def _given_names(self) -> tuple[str, ...]:
        given = (name.strip() for name in (self.served_model_name or "").split(","))
        return tuple(dict.fromkeys(filter(None, given)))

    def serves(self, name: str) -> bool:
        """Whether a client may call the model by this name."""
        patterns = (re.escape(given).replace(r"\*", ".*") for given in self._given_names if "*" in given)
        return name in self.model_names or any(re.fullmatch(each, name, re.DOTALL) for each in patterns)

    @property
    def model_name(self) -> str:
        """The first of `model_names`, which logs and metrics use."""
        return self.model_names[0]


@dataclass(frozen=True, slots=True)
class Sourced:
    """Settings, and for each that is no default where it comes from, in the words with which it is written there:
    --max-running, GANDER_MAX_RUNNING, or gander.toml: max-running."""

    settings: ServerSettings
    origins: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Configuration:
    """What all sources together say. server: what is said for the server and all models. models: each model's name and
    its settings, complete, the default one first. file: what was read of gander.toml."""

    server: Sourced
    models: tuple[tuple[str, Sourced], ...]
    file: SettingsFile


@dataclass(frozen=True, slots=True)
class SettingSources:
    """Where settings come from, so that they can be read again. flags, variables: by the settings' names. path: of
    gander.toml; is_named: whether somebody has named it, so that it must be there."""

    flags: Mapping[str, Any]
    variables: Mapping[str, Any]
    path: Path | None = None
    is_named: bool = False

    @classmethod
    def gather(cls, flags: Mapping[str, Any], path: str | None) -> SettingSources:
        """The sources of this process. path: of the file, if one is named."""
        named = None if path is None else Path(path).expanduser()
        return cls(flags, variables(), named or default_path(), named is not None)

    def without_keys(self, known: ServerSettings) -> SettingSources:
        """The same without keys that could be read: their hashes, as the settings have them."""
        flags, variables = (
            {name: getattr(known, name) if name in SECRETS else value for name, value in given.items()}
            for given in (self.flags, self.variables)
        )
        return replace(self, flags=flags, variables=variables)

    def read(self) -> Configuration:
        """Raises ConfigError with a line for each fault, which says where it is."""
        is_there = self.path is not None and (self.is_named or self.path.exists())
        file = read_settings_file(self.path) if is_there and self.path is not None else SettingsFile()
        given = self.flags.get("model", self.variables.get("model", ()))
        sources = ((given,) if isinstance(given, str) else tuple(given)) or tuple(file.models)
        if len(sources) < 2 and not file.models.keys() & set(sources):
            only = self._sourced(file, *sources)
            return Configuration(only, ((only.settings.model_name, only),), file)
        found = [self._sourced(file, source) for source in sources]
        require_own_names([each.settings for each in found])
        return Configuration(self._sourced(file), tuple((each.settings.model_name, each) for each in found), file)

    def _sourced(self, file: SettingsFile, model: str | None = None) -> Sourced:
        """The settings of the server, or of a model: one that has a table in the file, under whose name it is served,
        or one that is given by its source."""
        values, origins = dict(file.values), {name: _in_file(file, name) for name in file.values}
        if model is not None and model in file.models:
            table = dict(file.models[model])
            origins |= {name: _in_file(file, name, f"models.{model}.") for name in table}
            origins.setdefault("served_model_name", _in_file(file, f"[models.{model}]"))
            names = (model, *table.get("served_model_name", "").split(","))
            values |= table | {"served_model_name": ",".join(dict.fromkeys(filter(None, map(str.strip, names))))}
        for given, spelt in ((self.variables, _variable), (self.flags, _flag)):
            wins = {name: value for name, value in given.items() if name != "model"}
            values |= wins
            origins |= {name: spelt(name) for name in wins}
        if model is not None and model not in file.models:
            own = settings_of_source(model, values.get("served_model_name"))
            values |= own
            origins |= dict.fromkeys(own, _flag("model") if "model" in self.flags else _variable("model"))
        try:
            return Sourced(ServerSettings(**values), origins)
        except ValidationError as error:
            faults = [f"{origins[str(each['loc'][0])]}: {each['msg']}" for each in error.errors()]
            raise ConfigError("\n".join(faults)) from None


def variables() -> Mapping[str, Any]:
    """The environment's, by the settings' names."""
    return EnvSettingsSource(ServerSettings)()


def _in_file(file: SettingsFile, name: str, place: str = "") -> str:
    assert file.path is not None
    return f"{file.path.name}: {place}{key_of(name)}"


def _variable(name: str) -> str:
    return f"{PREFIX}{name.upper()}"


def _flag(name: str) -> str:
    return "MODEL" if name == "model" else f"--{key_of(name)}"


def require_own_names(models: Sequence[ServerSettings]) -> None:
    """Raises ConfigError where two models have one name."""
    owners: dict[str, ServerSettings] = {}
    for settings in models:
        for name in settings.model_names:
            other = owners.setdefault(name, settings)
            if other is not settings:
                sources = f"models {other.model_name} ({other.model}) and {settings.model_name} ({settings.model})"
                raise ConfigError(f"{sources} have one name, {name}: a name is one model's, and NAME=MODEL gives one")
