"""gander.toml: what it may say, what is refused in which words, and what wins over it."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import server.process.runner
from decoding.errors import ConfigError
from server.cli import app
from server.config import Configuration, ServerSettings, SettingSources
from server.settings.file import OF_MODELS, OF_THE_SERVER, default_path, key_of, read_settings_file

TWO_MODELS = """
weights = "int8"
port = 9000
[models.coder]
model = "org/coder"
served-model-name = "gpt-*"
[models."small.one"]
model = "~/small.gguf"
weights = "int4"
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "gander.toml"
    path.write_text(text)
    path.chmod(0o600)
    return path


def read(folder: Path, text: str, **flags: Any) -> Configuration:
    return SettingSources.gather(flags, str(written(folder, text))).read()


def refusal(folder: Path, text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        read(folder, text)
    return str(caught.value).split("\n")


def test_every_flag_has_its_key(tmp_path: Path) -> None:
    for name, field in ServerSettings.model_fields.items():
        value = field.default
        if value is None:
            kinds = {"str": "8GiB", "bool": True}
            value = next((kinds[kind] for kind in kinds if kind in str(field.annotation)), 7)
        text = json.dumps(value)
        found = read_settings_file(written(tmp_path, f"{key_of(name)} = {text}"))
        assert list(found.values) == [name]


def test_the_example_is_such_a_file() -> None:
    example = Path(__file__).parents[3] / "deploy" / "gander.toml"
    ((name, coder),) = SettingSources({}, {}, example, is_named=True).read().models
    assert (name, coder.settings.weights, coder.settings.max_model_len) == ("coder", "int8", 16384)


def test_flags_win_over_variables_over_the_file_over_defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GANDER_MAX_NODES", "2")
    monkeypatch.setenv("GANDER_PORT", "2")
    found = read(tmp_path, "port = 1\nmax-nodes = 1\nmax-running = 1", port=3).server
    assert (found.settings.port, found.settings.max_nodes, found.settings.max_running) == (3, 2, 1)
    assert found.settings.max_waiting == ServerSettings().max_waiting
    assert found.origins == {
        "port": "--port",
        "max_nodes": "GANDER_MAX_NODES",
        "max_running": "gander.toml: max-running",
    }


def test_models_have_what_is_said_for_all_and_what_their_table_says(tmp_path: Path) -> None:
    found = read(tmp_path, TWO_MODELS, max_nodes=8)
    models = {name: each.settings for name, each in found.models}
    assert list(models) == ["coder", "small.one"]
    coder, small = models.values()
    assert (coder.model, coder.weights, coder.port, coder.max_nodes) == ("org/coder", "int8", 9000, 8)
    assert (small.model, small.weights, small.max_nodes) == (str(Path.home() / "small.gguf"), "int4", 8)
    assert (coder.model_name, small.model_names) == ("coder", ("small.one",))
    assert coder.serves("gpt-5")
    assert not small.serves("gpt-5")
    assert found.server.settings.port == 9000


def test_a_named_model_is_the_one_of_its_table_or_stands_for_none(tmp_path: Path) -> None:
    (chosen,) = read(tmp_path, TWO_MODELS, model="small.one").models
    assert (chosen[0], chosen[1].settings.weights) == ("small.one", "int4")
    (other,) = read(tmp_path, TWO_MODELS, model="org/other").models
    assert (other[0], other[1].settings.model, other[1].settings.weights) == ("org/other", "org/other", "int8")


def test_a_file_without_tables_is_of_one_model(tmp_path: Path) -> None:
    found = read(tmp_path, "model = 'org/name'")
    assert found.models == (("org/name", found.server),)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("max-runing = 4", "max-runing: no such setting; did you mean max-running?"),
        ("max_running = 4", "max_running: no such setting; did you mean max-running?"),
        ("zzz = 4", "zzz: no such setting; gander serve --help lists them"),
        ("max-running = '4'", "max-running: Input should be a valid integer"),
        ("max-running = true", "max-running: Input should be a valid integer"),
        ("max-running = 0", "max-running: Input should be greater than or equal to 1"),
        ("prefix-cache = 'no'", "prefix-cache: Input should be a valid boolean"),
        ("weights = 'int3'", "weights: Input should be 'auto', 'int8' or 'int4'"),
        ("model = 4", "model: Input should be a valid string"),
        ("kv-memory = '8'", "kv-memory: '8' is neither a share of the free memory, such as 0.5"),
        ("session-ttl = inf", "session-ttl: Input should be a finite number"),
        ("models = 4", "models: each model has a table [models.NAME]"),
        ("[models]\na = 4", "models: each model has a table [models.NAME]"),
        ("[models.a]", "models.a.model: this is missing: it says where the model is"),
        ("[models.'a b']\nmodel = 'x'", "models.a b: a model's name has neither spaces nor commas nor stars"),
        ("[models.a]\nmodel = 'x'\nport = 1", "models.a.port: this is the server's; it stands above the tables"),
        ("[models.a]\nmodel = 'x'\napi-keys = 'k'", "models.a.api-keys: this is the server's"),
        ("[models.a]\nmodel = 'x'\nweigths = 'int8'", "models.a.weigths: no such setting; did you mean weights?"),
        ("[models.a_b]\nmodel = 'x'\nkv-memory = '8'", "models.a_b.kv-memory: '8' is neither"),
        ("model = 'x'\n[models.a]\nmodel = 'x'", "model: this belongs into the table of a model, where there are any"),
    ],
)
def test_what_is_wrong_is_named_by_its_key(tmp_path: Path, text: str, said: str) -> None:
    (line,) = refusal(tmp_path, text)
    assert line.startswith(f"gander.toml: {said}")


def test_every_fault_has_its_line(tmp_path: Path) -> None:
    said = refusal(tmp_path, "prot = 1\nport = 'x'\n[models.a]\nthreads = 0")
    assert [line.split(":")[1].strip() for line in said] == ["prot", "port", "models.a.model", "models.a.threads"]


def test_a_wrong_value_is_named_where_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GANDER_PORT", "x")
    monkeypatch.setenv("GANDER_MAX_RUNNING", "x")
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, "kv-memory = 'lots'\nport = 80", max_running=1, threads=0)
    names = [line.partition(": ")[0] for line in str(caught.value).split("\n")]
    assert sorted(names) == ["--threads", "GANDER_PORT", "gander.toml"]


@pytest.mark.parametrize(
    "text", ["port 1", "port = 1\nport = 2", "[models.a]\nmodel='x'\n[models.a]", "a = " + "[" * 5000]
)
def test_what_is_no_toml_is_said_so(tmp_path: Path, text: str) -> None:
    assert refusal(tmp_path, text)[0].startswith("gander.toml is no TOML: ")


def test_a_file_of_bytes_is_no_toml(tmp_path: Path) -> None:
    path = tmp_path / "gander.toml"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match=r"^gander\.toml is no TOML: "):
        read_settings_file(path)


def test_two_models_of_one_name_are_refused(tmp_path: Path) -> None:
    table = "[models.{}]\nmodel = 'x'\nserved-model-name = '{}'\n"
    said = refusal(tmp_path, table.format("a", "x") + table.format("b", "y,x"))
    assert said == ["models a (x) and b (x) have one name, x: a name is one model's, and NAME=MODEL gives one"]


def test_a_named_file_has_to_be_there_and_the_default_one_need_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match=r"nothing\.toml cannot be read: No such file"):
        SettingSources.gather({}, str(tmp_path / "nothing.toml")).read()
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert default_path() == tmp_path / "gander" / "gander.toml"
    assert SettingSources.gather({}, None).read().server.origins == {}
    (tmp_path / "gander").mkdir()
    written(tmp_path / "gander", "port = 9001")
    assert SettingSources.gather({}, None).read().server.settings.port == 9001


def test_the_default_file_is_in_the_home_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    for value in ("", "relative"):
        monkeypatch.setenv("XDG_CONFIG_HOME", value)
        assert default_path() == Path.home() / ".config" / "gander" / "gander.toml"


def test_what_belongs_to_the_server_is_no_models() -> None:
    assert {"port", "api_keys", "log_level", "unknown_fields"} <= OF_THE_SERVER
    assert not {"model", "weights", "served_model_name", "draft_head", "tool_parser"} & OF_THE_SERVER
    assert set(OF_MODELS) | OF_THE_SERVER | {"served_model_name"} == set(ServerSettings.model_fields)


def test_serve_takes_the_file_and_warns_of_keys_that_others_can_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[ServerSettings] = []
    monkeypatch.setattr(server.process.runner, "run", lambda _, models, **__: started.extend(models) or 0)
    path = written(tmp_path, "port = 9002\napi-keys = 'sesame'")
    serve = ("serve", "--config", str(path))
    assert CliRunner().invoke(app, serve).output == ""
    path.chmod(0o640)
    said = CliRunner().invoke(app, serve).output
    assert said.startswith(f"{path}: it has API keys, and others can read it")
    path.write_text(f"api-keys = 'sha256:{64 * 'a'}'")
    assert CliRunner().invoke(app, serve).output == ""
    assert [settings.port for settings in started] == [9002, 9002, 8000]
    monkeypatch.setenv("GANDER_CONFIG", str(written(tmp_path, TWO_MODELS)))
    assert CliRunner().invoke(app, ["serve", "coder"]).exit_code == 0
    assert started[-1].model == "org/coder"
    result = CliRunner().invoke(app, ["serve"])
    assert (result.exit_code, [each.model_name for each in started[4:]]) == (0, ["coder", "small.one"])


def test_the_settings_in_force_are_shown_without_keys_as_a_file(tmp_path: Path) -> None:
    path = written(tmp_path, f"admin-keys = 'sesame'\n{TWO_MODELS}")
    result = CliRunner().invoke(app, ["config", "--config", str(path), "--port", "9003", "--api-keys", "open"])
    assert result.exit_code == 0
    assert "sesame" not in result.output
    assert "sha256" not in result.output
    assert re.search(r"^port = 9003 +# --port$", result.output, re.MULTILINE)
    assert re.search(r"^# admin-keys is not shown +# gander.toml: admin-keys$", result.output, re.MULTILINE)
    assert re.search(r"^# max-running is not set +# default$", result.output, re.MULTILINE)
    for name in ServerSettings.model_fields:
        assert re.search(rf"^(# )?{key_of(name)} (=|is not)", result.output, re.MULTILINE), name
    again = read(tmp_path, result.output)
    before = read(tmp_path, TWO_MODELS, port=9003)
    assert [(name, each.settings) for name, each in again.models] == [(n, each.settings) for n, each in before.models]


def test_config_refuses_what_serve_refuses(tmp_path: Path) -> None:
    path = written(tmp_path, "prot = 1")
    for command in ("serve", "config"):
        result = CliRunner().invoke(app, [command, "--config", str(path)])
        assert result.exit_code == 2
        assert result.output.strip() == "gander.toml: prot: no such setting; did you mean port?"
