"""Settings: flags and variables, and the engine's options among them."""

from dataclasses import asdict, fields
from pathlib import Path

import pytest
from pydantic import ValidationError

from decoding.config import EngineConfig
from server.config import ServerSettings


def test_every_engine_option_is_a_setting_with_the_same_default() -> None:
    assert ServerSettings().engine_config() == EngineConfig()
    for option in fields(EngineConfig):
        assert option.name in ServerSettings.model_fields, option.name


def test_variables_set_what_flags_leave_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GANDER_PORT", "9000")
    monkeypatch.setenv("GANDER_MAX_NODES", "16")
    settings = ServerSettings(port=9001)
    assert (settings.port, settings.max_nodes) == (9001, 16)
    assert asdict(settings.engine_config())["max_nodes"] == 16


def test_values_out_of_range_are_refused() -> None:
    with pytest.raises(ValidationError):
        ServerSettings(port=70000)


def test_a_model_is_served_under_the_name_of_its_folder_or_the_one_given(tmp_path: Path) -> None:
    (tmp_path / "my-model").mkdir()
    assert ServerSettings(model=str(tmp_path / "my-model")).model_name == "my-model"
    assert ServerSettings(model="org/name").model_name == "org/name"
    assert ServerSettings(model="org/name", served_model_name="x").model_name == "x"
