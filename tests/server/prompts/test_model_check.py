"""Whether a model can be there at all, said before anything starts."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from decoding.errors import ConfigError
from server.app import create_service
from server.config import ServerSettings
from server.prompts.model_check import check_model
from tests.mmproj_files import write_language, write_mmproj
from tests.seeing import tiny_seeing

WHOLE = ("config.json", "model.safetensors", "tokenizer.json")
ASK = """
import os, sys
from decoding.errors import ConfigError
from server.prompts.model_check import check_model
try:
    check_model("org/name", None)
except ConfigError as error:
    print(error)
print(os.environ.get("HF_HUB_OFFLINE"))
"""


def folder_of(tmp_path: Path, *names: str) -> str:
    for name in names:
        (tmp_path / name).write_text("{}")
    return str(tmp_path)


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (WHOLE[1:], r"the folder .* has no config.json: give the folder of a whole model"),
        (WHOLE[::2], r"the folder .* has no weights \(\*.safetensors\): give"),
        (WHOLE[:2], r"the folder .* has no tokenizer \(tokenizer.json\): give"),
        ((), r"the folder .* has no config.json"),
        (("a.gguf",), r"the GGUF file a.gguf cannot be served: a.gguf is not a GGUF file: it has 2 bytes"),
        (
            ("a.gguf", "b.gguf"),
            r"the folder .* has several GGUF files: choose one with --gguf-file, or by its path: a.gguf, b.gguf",
        ),
        (("adapter_config.json", "adapter_model.safetensors"), r"config.json: it holds an adapter; merge it"),
    ],
)
def test_the_file_that_a_folder_lacks_is_named(tmp_path: Path, names: tuple[str, ...], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        check_model(folder_of(tmp_path, *names), None)


def test_a_whole_model_and_a_draft_model_without_tokenizer_are_right(tmp_path: Path) -> None:
    check_model(folder_of(tmp_path, *WHOLE[:2]), None, has_tokenizer=False)
    check_model(folder_of(tmp_path, "tokenizer.model"), None)
    check_model("gosling", None)


def test_a_file_and_what_is_neither_path_nor_name_are_refused(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").touch()
    with pytest.raises(ConfigError, match=r"model.onnx is a file: a model is a folder"):
        check_model(str(tmp_path / "model.onnx"), None)
    for name in ("/nothing/here", "./nothing", "models/qwen/small", "two words"):
        with pytest.raises(ConfigError, match=f"there is no folder {name}, and that is no name on the hub"):
            check_model(name, None)


@pytest.mark.parametrize("field", ["draft_model", "draft_head"])
def test_models_that_draft_are_looked_for_too(field: str) -> None:
    with pytest.raises(ConfigError, match="there is no folder /nothing/here"):
        create_service(ServerSettings.model_validate({field: "/nothing/here"}))


def test_what_stands_in_place_of_a_name_is_not_looked_for() -> None:
    for name in ("auto", "none", "mtp"):
        create_service(ServerSettings(draft_model=name))


def test_the_home_folder_is_meant_by_a_tilde(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ada")
    settings = ServerSettings(model="~/models/x", draft_head="~/head", sessions_dir="~/sessions", tree="trees/~")
    assert settings.engine_config().model == "/home/ada/models/x"
    assert (settings.draft_head, settings.sessions_dir, settings.tree) == (
        "/home/ada/head",
        "/home/ada/sessions",
        "trees/~",
    )
    assert settings.model_name == "/home/ada/models/x"


@contextmanager
def hub(status: int, code: str, files: list[str]) -> Iterator[str]:
    """A hub that answers every question about a model in one way. Yields its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps({"id": "org/name", "siblings": [{"rfilename": file} for file in files]}).encode()
            self.send_response(status)
            self.send_header("X-Error-Code", code)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


def ask(address: str, cache: Path) -> tuple[str, str]:
    """What is said of org/name, and what was logged."""
    variables = {"HF_ENDPOINT": address, "HF_HOME": str(cache), "PYTHONPATH": str(Path(__file__).parents[3])}
    environment = {name: value for name, value in os.environ.items() if name not in ("HF_HUB_OFFLINE", "HF_HUB_CACHE")}
    ended = subprocess.run(
        [sys.executable, "-c", ASK],
        env=environment | variables,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return ended.stdout, ended.stderr


@pytest.mark.parametrize(
    ("status", "code", "files", "said"),
    [
        (200, "", list(WHOLE), "None\n"),
        (200, "", ["a.gguf"], "the model org/name on the hub is a GGUF file: gander pull org/name brings it"),
        (200, "", ["a.gguf", "b.gguf"], "org/name has several quantisations: choose one, as org/name:NAME, of a, b"),
        (404, "RepoNotFound", [], "there is no folder org/name, and the hub has no model of this name"),
        (403, "GatedRepo", [], "the model org/name is gated: ask for access"),
        (404, "RevisionNotFound", [], "the model org/name has no revision"),
        (500, "", [], "there is no folder org/name, and the hub cannot be reached to look for org/name: "),
    ],
)
def test_the_hub_is_asked_once(tmp_path: Path, status: int, code: str, files: list[str], said: str) -> None:
    with hub(status, code, files) as address:
        assert ask(address, tmp_path)[0].startswith(said)


def test_without_the_hub_the_cache_is_used(tmp_path: Path) -> None:
    with hub(200, "", []) as address:
        gone = address
    said, logged = ask(gone, tmp_path)
    assert said.startswith("there is no folder org/name, and the hub cannot be reached")
    assert "Retrying" not in logged
    snapshot = tmp_path / "hub/models--org--name/snapshots/0123"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    (snapshot.parents[1] / "refs").mkdir()
    (snapshot.parents[1] / "refs/main").write_text("0123")
    said, logged = ask(gone, tmp_path)
    assert (said, "is loaded from its cache" in logged) == ("1\n", True)


def test_the_projector_of_a_gguf_model_must_be_there_and_fit(tmp_path: Path) -> None:
    """Before anything starts, where it is asked for."""
    own = tiny_seeing("idefics3", tmp_path / "hub")
    path = str(write_language(tmp_path / "model.gguf", "idefics3", own))
    projector = write_mmproj(tmp_path / "a.gguf", "idefics3", own, metadata={"clip.vision.projection_dim": 96})
    check_model(path, None)
    for mmproj, said in (
        (projector, "a.gguf cannot be served: its projector gives 96 numbers for each token"),
        (tmp_path / "b.gguf", "--mmproj names .*b.gguf, which is no file"),
    ):
        with pytest.raises(ConfigError, match=said):
            check_model(path, None, mmproj=str(mmproj))
        with pytest.raises(ConfigError, match=said):
            create_service(ServerSettings(model=path, mmproj=str(mmproj)))
    check_model(path, None, mmproj=str(write_mmproj(projector, "idefics3", own)))
    for name in (str(tmp_path / "hub"), "gosling"):
        with pytest.raises(ConfigError, match=r"--mmproj names the projector of a GGUF file, and .* is none"):
            check_model(name, None, mmproj=str(projector))
