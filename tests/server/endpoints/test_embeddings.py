"""Embeddings over plain HTTP and through OpenAI's client, in front of the scripted worker, whose vectors are ids."""

import json
from base64 import b64decode
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import TypeAdapter

from server.config import ServerSettings
from server.schemas.catalog import EmbeddingReply
from tests.server.servers import RunningServer, make_model_folder, running_server

EMBEDDING_LEN = 8  # the scripted worker's


def expected(text: str, dimensions: int = EMBEDDING_LEN, pooling: str = "last") -> list[float]:
    """The text's bytes, again and again, as a vector of length one."""
    data = text.encode()[:: 1 if pooling == "mean" else -1]
    numbers = np.resize(np.frombuffer(data, np.uint8), EMBEDDING_LEN).astype(np.float64)[:dimensions]
    return [float(number) for number in (numbers / np.linalg.norm(numbers)).astype(np.float32)]


def post(server: RunningServer, **body: Any) -> Any:
    return server.http.post("/v1/embeddings", json={"model": server.model} | body)


def embed(server: RunningServer, **body: Any) -> Any:
    reply = post(server, **body)
    assert reply.status_code == 200, reply.text
    assert TypeAdapter(EmbeddingReply).validate_python(reply.json()) == reply.json()
    return reply.json()


def refused(server: RunningServer, **body: Any) -> Any:
    reply = post(server, **body)
    assert reply.status_code == 400, reply.text
    return reply.json()["error"]


@pytest.mark.parametrize(
    ("given", "texts"),
    [
        ("ab", ["ab"]),
        (["ab", "c"], ["ab", "c"]),
        ([97, 98], ["ab"]),
        ([[97, 98], [99]], ["ab", "c"]),
    ],
)
def test_texts_and_token_ids_are_embedded_in_their_order(server: RunningServer, given: Any, texts: list[str]) -> None:
    reply = embed(server, input=given)
    assert [entry["index"] for entry in reply["data"]] == [*range(len(texts))]
    for entry, text in zip(reply["data"], texts, strict=True):
        assert entry["embedding"] == pytest.approx(expected(text))
    num_tokens = sum(map(len, texts))
    assert reply["usage"] == {"prompt_tokens": num_tokens, "total_tokens": num_tokens}
    assert reply["model"] == server.model


def test_dimensions_shorten_a_vector_that_keeps_its_length(server: RunningServer) -> None:
    (entry,) = embed(server, input="abc", dimensions=2)["data"]
    assert entry["embedding"] == pytest.approx(expected("abc", 2))
    assert np.linalg.norm(entry["embedding"]) == pytest.approx(1)
    error = refused(server, input="abc", dimensions=9)
    assert (error["param"], error["code"]) == ("dimensions", "above_limit")


def test_base64_has_the_same_numbers(server: RunningServer) -> None:
    (entry,) = embed(server, input="abc", encoding_format="base64")["data"]
    assert np.frombuffer(b64decode(entry["embedding"]), "<f4").tolist() == expected("abc")


def test_openais_client_reads_them(server: RunningServer) -> None:
    reply = server.client().embeddings.create(model=server.model, input=["ab", "c"])
    assert [entry.embedding for entry in reply.data] == [pytest.approx(expected(text)) for text in ("ab", "c")]
    assert reply.usage.prompt_tokens == 3


def test_more_inputs_than_may_run_at_a_time_are_all_embedded(server: RunningServer) -> None:
    texts = [f"text {number}" for number in range(100)]
    entries = embed(server, input=texts)["data"]
    assert [entry["embedding"] for entry in entries] == [pytest.approx(expected(text)) for text in texts]


@pytest.mark.parametrize(
    ("body", "param", "code", "words"),
    [
        ({"input": []}, "input", "empty_prompt", "empty list"),
        ({"input": ""}, "input", "empty_input", "entry 0 is empty"),
        ({"input": ["a", ""]}, "input", "empty_input", "entry 1 is empty"),
        ({"input": [[97], []]}, "input", "empty_input", "entry 1 is empty"),
        ({"input": {"text": "a"}}, "input", "invalid_type", "input must be a string"),
        ({"input": [1, "a"]}, "input", "invalid_type", "input must be a string"),
        ({}, "input", "missing_required_parameter", "required"),
        ({"input": [97, 257]}, "input", "token_out_of_vocabulary", "257"),
        ({"input": ["a", "x" * 4096]}, "input", "context_length_exceeded", "entry 1 has 4096 tokens"),
        ({"input": ["a"] * 2049}, "input", "above_limit", "2049 is above"),
        ({"input": "a", "dimensions": 0}, "dimensions", "invalid_value", "dimensions"),
        ({"input": "a", "encoding_format": "int8"}, "encoding_format", "invalid_value", "encoding_format"),
    ],
)
def test_what_cannot_be_embedded_is_refused_by_name(
    server: RunningServer, body: dict[str, Any], param: str, code: str, words: str
) -> None:
    error = refused(server, **body)
    assert (error["param"], error["code"]) == (param, code)
    assert words in error["message"]


def test_ollamas_forms_have_the_same_vectors(server: RunningServer) -> None:
    reply = server.http.post("/api/embed", json={"model": server.model, "input": ["ab", "c"], "dimensions": 4}).json()
    assert reply["embeddings"] == [pytest.approx(expected(text, 4)) for text in ("ab", "c")]
    assert (reply["prompt_eval_count"], reply["model"]) == (3, server.model)
    reply = server.http.post("/api/embeddings", json={"model": server.model, "prompt": "ab"}).json()
    assert reply == {"embedding": pytest.approx(expected("ab"))}


def test_ollama_cuts_what_is_too_long_unless_it_is_told_not_to(server: RunningServer) -> None:
    body = {"model": server.model, "input": "x" * 5000}
    assert server.http.post("/api/embed", json=body).json()["prompt_eval_count"] == 4095
    reply = server.http.post("/api/embed", json=body | {"truncate": False})
    assert reply.status_code == 400
    assert "entry 0" in reply.json()["error"]
    reply = server.http.post("/api/embeddings", json={"model": server.model, "prompt": ""})
    assert reply.json()["error"].startswith("prompt: entry 0 is empty")


def test_a_model_without_embeddings_says_so(tmp_path: Path) -> None:
    folder = make_model_folder(tmp_path / "toy", embedding_len=0)
    with running_server(ServerSettings(model=str(folder), drain_seconds=2)) as server:
        error = refused(server, input="a")
    assert (error["param"], error["code"]) == ("model", "no_embeddings")


@pytest.mark.parametrize(
    ("said", "setting", "pooling"),
    [
        (None, "auto", "last"),
        ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}, "auto", "mean"),
        ({"pooling_mode_lasttoken": True, "word_embedding_dimension": 8}, "auto", "last"),
        ({"pooling_mode_lasttoken": True}, "mean", "mean"),
        ({"pooling_mode_cls_token": True}, "last", "last"),
        ({"pooling_mode_cls_token": True}, "auto", None),
    ],
)
def test_the_models_own_pooling_file_says_how(tmp_path: Path, said: Any, setting: Any, pooling: str | None) -> None:
    folder = make_model_folder(tmp_path / "toy")
    if said is not None:
        (folder / "1_Pooling").mkdir()
        (folder / "1_Pooling" / "config.json").write_text(json.dumps(said))
    settings = ServerSettings(model=str(folder), pooling=setting, drain_seconds=2)
    with running_server(settings) as server:
        if pooling is None:
            error = refused(server, input="a")
            assert (error["param"], error["code"]) == ("model", "unsupported_pooling")
            assert "cls_token" in error["message"]
        else:
            (entry,) = embed(server, input="abc")["data"]
            assert entry["embedding"] == pytest.approx(expected("abc", pooling=pooling))
