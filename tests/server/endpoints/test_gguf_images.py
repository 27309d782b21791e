"""Pictures over HTTP for a model in a GGUF file with its projector: what transformers' processor and model say."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from server.config import ServerSettings
from server.engine_client.processes.worker_process import WORKER_COMMAND
from tests.mmproj_files import TEXTS, write_language, write_mmproj
from tests.seeing import tiny_seeing
from tests.server.endpoints.test_images import PARTS, Seeing, check_prompt_and_reply
from tests.server.servers import running_server

RARER = [pytest.param(kind, marks=pytest.mark.slow) for kind in ("idefics3", "pixtral")]


@pytest.fixture(scope="module", params=["gemma3", "qwen2_5_vl", *RARER])
def seeing(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seeing]:
    kind, folder = request.param, tmp_path_factory.mktemp("models")
    own = tiny_seeing(kind, folder / "hub", **TEXTS.get(kind, {}))
    path = write_language(folder / "model.gguf", kind, own)
    write_mmproj(folder / "mmproj.gguf", kind, own)
    settings = ServerSettings(model=str(path), dtype="float32", drain_seconds=2, kv_slots=8192)
    with running_server(settings, WORKER_COMMAND) as server:
        yield Seeing(server, own, kind)


def test_prompt_and_reply_are_those_of_transformers(seeing: Seeing) -> None:
    check_prompt_and_reply(seeing)
    assert seeing.server.get("/v1/models").json()["data"][0]["input_modalities"] == ["text", "image"]


def test_without_its_projector_it_refuses_pictures_with_a_sentence(tmp_path: Path) -> None:
    own = tiny_seeing("idefics3", tmp_path / "hub")
    path = write_language(tmp_path / "model.gguf", "idefics3", own)
    settings = ServerSettings(model=str(path), dtype="float32", drain_seconds=2, kv_slots=8192)
    with running_server(settings, WORKER_COMMAND) as server:
        response = Seeing(server, own).chat(*PARTS)
        assert response.status_code == 400
        assert response.json()["error"]["message"] == (
            "The model takes no pictures: no projector (mmproj) is beside its GGUF file, nor named by --mmproj."
        )
        assert server.chat("plain text", max_completion_tokens=2).status_code == 200
