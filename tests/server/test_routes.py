"""The small routes, and the document that describes them all."""

from tests.server.servers import RunningServer


def test_models_are_listed_and_found(server: RunningServer) -> None:
    client = server.client()
    assert [model.id for model in client.models.list().data] == ["toy"]
    assert client.models.retrieve("toy").id == "toy"
    assert server.get("/v1/models/toy").json()["max_model_len"] == 4096


def test_version_and_health_answer(server: RunningServer) -> None:
    assert set(server.get("/version").json()) == {"version"}
    health = server.get("/health").json()
    assert (health["status"], health["restarts"], health["last_error"]) == ("ready", 0, None)
    assert health["worker_pid"] > 0


def test_the_openapi_document_has_the_request_and_the_errors(server: RunningServer) -> None:
    document = server.get("/openapi.json").json()
    operation = document["paths"]["/v1/completions"]["post"]
    assert "422" not in operation["responses"]
    assert {"200", "400", "404", "413", "429", "500", "503"} <= set(operation["responses"])
    properties = document["components"]["schemas"]["CompletionRequest"]["properties"]
    assert len(properties["prompt"]["anyOf"]) == 4
    assert properties["temperature"]["maximum"] == 100
