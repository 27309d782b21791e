"""Generated requests, right and wrong by our own OpenAPI document: no fault, and no reply that it does not have."""

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from server.config import ServerSettings
from tests.server.servers import PATIENCE, make_model_folder, running_server


def no_fault(_: Any, response: Any, case: Any) -> None:
    """Nothing fails but by a time limit that the request itself sets."""
    is_limited = isinstance(case.body, dict) and "timeout" in case.body
    assert response.status_code < 500 or (response.status_code == 504 and is_limited), response.text


CHECKS = [
    no_fault,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]

OPERATIONS = [
    ("post", "/v1/chat/completions"),
    ("post", "/v1/completions"),
    ("post", "/v1/responses"),
    ("post", "/v1/responses/input_tokens"),
    ("get", "/v1/responses/{response_id}"),
    ("delete", "/v1/responses/{response_id}"),
    ("post", "/v1/responses/{response_id}/cancel"),
    ("get", "/v1/responses/{response_id}/input_items"),
    ("post", "/v1/messages"),
    ("post", "/v1/messages/count_tokens"),
    ("post", "/v1/embeddings"),
    ("post", "/api/embed"),
    ("post", "/api/embeddings"),
    ("post", "/api/chat"),
    ("post", "/api/generate"),
    ("post", "/api/show"),
    ("delete", "/api/delete"),
    ("get", "/api/tags"),
    ("get", "/api/ps"),
    ("get", "/api/version"),
    ("get", "/v1/models"),
    ("get", "/v1/models/{model}"),
    ("get", "/v1/sessions"),
    ("delete", "/v1/sessions/{session_id}"),
    ("get", "/v1/sessions/{session_id}/export"),
    ("put", "/v1/sessions/{session_id}/export"),
    ("post", "/admin/models/{name}/load"),
    ("post", "/admin/models/{name}/unload"),
    ("post", "/admin/reload"),
    ("get", "/is_sleeping"),
    ("post", "/tokenize"),
    ("post", "/detokenize"),
    ("get", "/tokenizer_info"),
    ("get", "/health"),
    ("get", "/ready"),
    ("get", "/version"),
    ("get", "/metrics"),
]
EXAMPLES = [5, pytest.param(20, marks=pytest.mark.slow)]  # of each operation, right and wrong


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder = make_model_folder(tmp_path_factory.mktemp("models") / "toy")
    small = {"max_choices": 2, "max_reply_tokens": 24, "max_prompts": 4, "drain_seconds": 2}
    with running_server(ServerSettings(model=str(folder), **small)) as server:
        yield schemathesis.openapi.from_url(f"{server.url}/openapi.json")


@pytest.mark.parametrize("num_examples", EXAMPLES)
@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=["right", "wrong"])
@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_every_reply_to_a_generated_request_is_documented(
    api: Any, method: str, path: str, mode: GenerationMode, num_examples: int
) -> None:
    num_sent = 0

    @settings(
        max_examples=num_examples,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=api[path][method].as_strategy(generation_mode=mode))
    def send(case: Any) -> None:
        nonlocal num_sent
        num_sent += 1
        case.call_and_validate(checks=CHECKS, timeout=PATIENCE)

    try:
        send()
    except Unsatisfiable:
        pytest.skip("nothing about this path can be wrong")
    assert num_sent


def test_every_path_of_the_document_is_tried(api: Any) -> None:
    document = {(result.ok().method.lower(), result.ok().path) for result in api.get_all_operations()}
    assert document == set(OPERATIONS)
