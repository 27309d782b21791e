"""Start-up settings: each is a flag of `gander serve` and a GANDER_* variable.

The groups in `server/settings/` own names, defaults and bounds.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from pydantic import field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from server.settings.access import AccessSettings
from server.settings.engine import EngineSettings
from server.settings.port import PortSettings
from server.settings.process import ProcessSettings
from server.settings.requests import RequestSettings

PATHS = (
    *("model", "draft_model", "draft_head", "tree", "chat_template"),
    *("prefix_dir", "sessions_dir", "sessions_key", "api_key_file"),
)


# Pydantic, and so `gander serve --help`, has the fields of the last group first.
class ServerSettings(ProcessSettings, AccessSettings, RequestSettings, PortSettings, EngineSettings, BaseSettings):
    """Flags win over variables, variables over defaults."""

    model_config = SettingsConfigDict(env_prefix="GANDER_", frozen=True, extra="forbid", allow_inf_nan=False)

    @field_validator(*PATHS)
    @classmethod
    def _expand_home(cls, path: str | None) -> str | None:
        """Replace a leading ~ once, for all who open the path. A shell does not where a flag is written as --flag=~."""
        return path if path is None or not path.startswith("~") else os.path.expanduser(path)  # noqa: PTH111

    @property
    def model_names(self) -> tuple[str, ...]:
        """The ids under which the model is listed: those given, else the folder's or file's name, or the hub name."""
        folder = Path(self.model)
        own = folder.resolve().name if folder.is_dir() else folder.stem if folder.is_file() else self.model
        return tuple(name for name in self._given_names if "*" not in name) or (own,)

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
