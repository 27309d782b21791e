"""The small routes, and the document that describes them all."""

import json
from datetime import datetime
from pathlib import Path

import pytest

from server.config import ServerSettings
from server.http.notices import NOTICE, UnknownFields
from tests.server.servers import CHAT_TEMPLATE, RunningServer, make_model_folder, running_server


def test_models_are_listed_and_found(server: RunningServer) -> None:
    client = server.client()
    assert [model.id for model in client.models.list().data] == ["toy"]
    assert client.models.retrieve("toy").id == "toy"
    card = server.get("/v1/models/toy").json()
    assert card["max_model_len"] == 4096
    usual = {"id", "object", "created", "owned_by", "root", "parent", "max_model_len", "state"} | {"input_modalities"}
    assert set(card) == usual, "nothing to note"
    assert card["state"] == "ready"
    assert (card["root"], card["parent"]) == ("toy", None)


def test_anthropics_client_reads_the_models_it_knows(server: RunningServer) -> None:
    headers = {"anthropic-version": "2023-06-01"}
    page = server.http.get("/v1/models", headers=headers).json()
    card = server.http.get("/v1/models/toy", headers=headers).json()
    assert page["data"] == [card]
    assert (page["has_more"], page["first_id"], page["last_id"]) == (False, "toy", "toy")
    assert (card["id"], card["type"], card["display_name"]) == ("toy", "model", "toy")
    assert card["max_input_tokens"] == 4096
    assert datetime.fromisoformat(card["created_at"]).timestamp() == card["created"]


def test_a_model_is_served_by_each_of_its_names(tmp_path: Path) -> None:
    folder = make_model_folder(tmp_path / "toy")
    settings = ServerSettings(model=str(folder), served_model_name=" big, small ,big,", drain_seconds=1)
    with running_server(settings) as server:
        client = server.client()
        assert [model.id for model in client.models.list().data] == ["big", "small"]
        assert client.models.retrieve("small").model_dump()["root"] == "toy"
        for name in ("big", "small"):
            assert client.completions.create(model=name, prompt="a", max_tokens=1).model == name
            assert client.responses.create(model=name, input="a", max_output_tokens=1).model == name
        assert server.post(prompt="a", max_tokens=1).json()["model"] == "big"
        refused = server.post(model="toy", prompt="a").json()["error"]
        assert (refused["code"], "'big', 'small'" in refused["message"]) == ("model_not_found", True)
        assert 'model="big"' in server.get("/metrics").text


FIELDS_OF_OTHERS = {
    "messages": [{"role": "user", "content": "a", "provider": 1}],
    "max_tokens": 1,
    "gateway_field": {"a": 1},
    "stream_options": {"other\r\nX-Evil: \u00e9": True},
}


@pytest.mark.parametrize("policy", ["warn", "ignore", "error"])
def test_unknown_fields_are_named_ignored_or_refused(
    policy: UnknownFields, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    names = ("gateway_field", "provider", r"other\r\nX-Evil: \xe9")
    settings = ServerSettings(model=str(make_model_folder(tmp_path / "toy")), unknown_fields=policy, drain_seconds=1)
    with running_server(settings) as server:
        large = [{"role": "user", "content": "a", "provider": "x" * 20_000}]  # is read away from the event loop
        for body in (FIELDS_OF_OTHERS, FIELDS_OF_OTHERS | {"stream": True}, FIELDS_OF_OTHERS | {"messages": large}):
            reply = server.http.post("/v1/chat/completions", json=body)
            assert reply.status_code == (400 if policy == "error" else 200), reply.text
            told = reply.headers.get(NOTICE, "")
            assert [f"The unknown field '{name}' is ignored." in told for name in names] == [policy == "warn"] * 3
            assert "X-Evil" not in reply.headers
        logged = [record.getMessage() for record in caplog.records if record.name == "gander.notices"]
        assert len(logged) == (3 if policy == "warn" else 0)
        known = server.post(prompt="a", use_beam_search=True)
        assert known.json()["error"]["code"] == "unsupported_parameter", "one that is known is still refused"
        assert NOTICE not in server.post(prompt="a").headers


def test_names_of_models_may_be_patterns(tmp_path: Path) -> None:
    folder = make_model_folder(tmp_path / "toy")
    settings = ServerSettings(model=str(folder), served_model_name="claude-*, gpt-5", drain_seconds=1)
    with running_server(settings) as server:
        assert [card["id"] for card in server.get("/v1/models").json()["data"]] == ["gpt-5"]
        for name, status in (("claude-opus-4", 200), ("gpt-5", 200), ("gpt-5.1", 404), ("xclaude-", 404), ("toy", 404)):
            reply = server.post(prompt="a", model=name, max_tokens=1)
            assert reply.status_code == status, name
            assert status == 404 or reply.json()["model"] == name
        assert server.get("/v1/models/claude-x").json()["id"] == "claude-x"
    assert ServerSettings(model=str(folder), served_model_name="*").model_name == "toy"


def test_version_and_health_answer(server: RunningServer) -> None:
    assert set(server.get("/version").json()) == {"version"}
    health = server.get("/health").json()
    assert (health["status"], health["restarts"], health["last_error"]) == ("ready", 0, None)
    assert health["worker_pid"] > 0
    room = {"kv_slots": 1000, "max_running": 32, "max_batch_rows": 512, "expected_bytes": 3 * 2**30}
    assert health["engine"] | room == health["engine"]


def test_routers_made_for_vllm_are_told_that_it_is_awake(tmp_path: Path) -> None:
    settings = ServerSettings(model=str(make_model_folder(tmp_path / "toy")), api_keys="secret", drain_seconds=1)
    with running_server(settings) as server:
        assert server.get("/is_sleeping").json() == {"is_sleeping": False}
        assert server.get("/v1/models").status_code == 401, "they have a key for what says more"


def test_text_and_messages_are_tokenized_and_back(server: RunningServer) -> None:
    reply = server.http.post("/tokenize", json={"prompt": "hé", "return_token_strs": True}).json()
    strings = ["h", "Ã", "©"]  # as the vocabulary spells bytes
    assert reply == {"count": 3, "max_model_len": 4096, "tokens": [104, 195, 169], "token_strs": strings}
    messages = [{"role": "user", "content": "hi"}]
    reply = server.http.post("/tokenize", json={"messages": messages}).json()
    text = "[user]\nhi\n[assistant]\n"
    assert bytes(reply["tokens"]).decode() == text
    assert server.http.post("/detokenize", json={"tokens": [*reply["tokens"], 256]}).json() == {
        "prompt": text + "<|end|>"
    }


def test_what_a_client_needs_of_the_tokenizer_is_told(tmp_path: Path) -> None:
    folder = make_model_folder(tmp_path / "toy")
    end = {"content": "<|end|>", "special": True}
    config = {"tokenizer_class": "Qwen2Tokenizer", "bos_token": None, "eos_token": end, "pad_token": "<|pad|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    with running_server(ServerSettings(model=str(folder), drain_seconds=1)) as server:
        assert server.get("/tokenizer_info").json() == {
            "tokenizer_class": "Qwen2Tokenizer",
            "bos_token": None,
            "eos_token": "<|end|>",
            "pad_token": "<|pad|>",
            "unk_token": None,
            "chat_template": CHAT_TEMPLATE,
        }


def test_a_tokenizer_without_a_configuration_has_no_special_tokens_to_tell_of(tmp_path: Path) -> None:
    settings = ServerSettings(model=str(make_model_folder(tmp_path / "toy", None)), drain_seconds=1)
    with running_server(settings) as server:
        told = server.get("/tokenizer_info").json()
    assert told.pop("tokenizer_class") == "PreTrainedTokenizerFast"
    assert set(told.values()) == {None}


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": [{"role": "user", "content": "a"}]}, "prompt"),
        ("/detokenize", {"tokens": [257]}, "tokens"),
        ("/detokenize", {"tokens": ["a"]}, "tokens.0"),
    ],
)
def test_a_wrong_field_is_named(server: RunningServer, path: str, body: dict[str, object], param: str) -> None:
    response = server.http.post(path, json=body)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


def test_sessions_are_listed_and_deleted(server: RunningServer) -> None:
    server.post(prompt="abc", session_id="chat/7", max_tokens=1)
    sessions = server.get("/v1/sessions").json()
    assert sessions["object"] == "list"
    card = next(card for card in sessions["data"] if card["id"] == "chat/7")
    assert card == {
        "id": "chat/7",
        "model": "toy",
        "object": "session",
        "owner": "",
        "bytes": 3,
        "bytes_by_store": {"context": 3},
        "idle_seconds": 0.5,
    }
    deleted = {"id": "chat/7", "object": "session.deleted", "deleted": True}
    assert server.http.delete("/v1/sessions/chat/7").json() == deleted
    again = server.http.delete("/v1/sessions/chat/7")
    assert (again.status_code, again.json()["error"]["code"]) == (404, "session_not_found")


def test_the_openapi_document_has_requests_errors_and_streams(server: RunningServer) -> None:
    document = server.get("/openapi.json").json()
    streams = {
        "/v1/completions": "Completion",
        "/v1/chat/completions": "ChatCompletionChunk",
        "/v1/responses": "ResponseEvent",
        "/v1/messages": "MessageEvent",
    }
    schemas = document["components"]["schemas"]
    for path, model in streams.items():
        operation = document["paths"][path]["post"]
        assert "422" not in operation["responses"]
        assert {"200", "400", "401", "404", "413", "429", "500", "503"} <= set(operation["responses"])
        content = operation["responses"]["200"]["content"]
        assert content["text/event-stream"]["schema"] == {"$ref": f"#/components/schemas/{model}"}
        assert model in schemas
        assert "application/json" in content
    properties = schemas["CompletionRequest"]["properties"]
    assert len(properties["prompt"]["anyOf"]) == 4
    assert properties["temperature"]["maximum"] == 100
    for path in (
        "/v1/models",
        "/v1/sessions",
        "/tokenize",
        "/detokenize",
        "/tokenizer_info",
        "/health",
        "/ready",
        "/version",
        "/metrics",
    ):
        assert path in document["paths"]
