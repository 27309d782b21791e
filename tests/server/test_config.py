"""Settings: flags and variables, and the engine's options among them."""

from dataclasses import asdict, fields
from pathlib import Path

import pytest
from pydantic import ValidationError

from decoding.config import EngineConfig
from server.config import ServerSettings


def test_every_engine_option_is_a_setting_with_the_same_default() -> None:
    assert ServerSettings().engine_config() == EngineConfig()
    options = {option.name for option in fields(EngineConfig)} - {
        "place",
        "kept_slots",
        "models",
    }  # what the server tells each worker
    assert options <= set(ServerSettings.model_fields)


def test_variables_set_what_flags_leave_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GANDER_PORT", "9000")
    monkeypatch.setenv("GANDER_MAX_NODES", "16")
    settings = ServerSettings(port=9001)
    assert (settings.port, settings.max_nodes) == (9001, 16)
    assert asdict(settings.engine_config())["max_nodes"] == 16


def test_values_out_of_range_are_refused() -> None:
    with pytest.raises(ValidationError):
        ServerSettings(port=70000)


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("0.5", 0.5),
        (".25", 0.25),
        ("1", 1.0),
        ("8GiB", 2**33),
        ("500MB", 500_000_000),
        (" 1.5 gib ", 1.5 * 2**30),
        ("0.5GiB", 2**29),
        ("2048KiB", 2**21),
        ("3tb", 3e12),
        ("8000000000", 8e9),
        ("8000000000B", 8e9),
    ],
)
def test_the_memory_of_the_cache_is_a_share_or_bytes(text: str, amount: float) -> None:
    assert ServerSettings(kv_memory=text).engine_config().kv_memory == amount


@pytest.mark.parametrize(
    "text",
    ["0", "-1", "8", "1.5", "1MB", "0GiB", "85%", "8G", "8iB", "lots", "", "inf", "nan", "1e9", "8 Gi B", "9" * 400],
)
def test_what_is_no_memory_is_refused(text: str) -> None:
    with pytest.raises(ValidationError, match="neither a share of the free memory") as caught:
        ServerSettings(kv_memory=text)
    assert caught.value.errors()[0]["loc"] == ("kv_memory",)


def test_the_memory_of_the_cache_may_stand_in_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GANDER_KV_MEMORY", "2GiB")
    assert ServerSettings().engine_config().kv_memory == 2**31


@pytest.mark.parametrize("milliseconds", [0, -5, float("inf"), float("nan")])
def test_a_delay_of_steps_is_above_0_and_has_an_end(milliseconds: float) -> None:
    with pytest.raises(ValidationError):
        ServerSettings(max_step_ms=milliseconds)


def test_a_model_is_served_under_the_name_of_its_folder_or_the_one_given(tmp_path: Path) -> None:
    (tmp_path / "my-model").mkdir()
    assert ServerSettings(model=str(tmp_path / "my-model")).model_name == "my-model"
    assert ServerSettings(model="org/name").model_name == "org/name"
    assert ServerSettings(model="org/name", served_model_name="x").model_name == "x"
