"""Whatever is sent, the answer is a 4xx in OpenAI's shape that names the field."""

import json
from typing import Any

import httpx
import pytest
from openai import BadRequestError, NotFoundError

from tests.server.servers import RunningServer


def check_error(response: httpx.Response, status: int, param: str | None, code: str) -> str:
    """The message of an error reply whose shape is right."""
    assert response.status_code == status, response.text
    assert response.headers["x-request-id"].startswith("req_")
    assert set(response.json()) == {"error"}
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["param"], error["code"]) == (param, code), error
    assert error["type"] == ("server_error" if status >= 500 else "invalid_request_error")
    assert 1 <= len(error["message"]) <= 500
    message: str = error["message"]
    return message


WRONG_FIELDS: list[tuple[dict[str, Any], str, str]] = [
    ({"prompt": 5}, "prompt", "invalid_type"),
    ({"prompt": {"a": 1}}, "prompt", "invalid_type"),
    ({"prompt": True}, "prompt", "invalid_type"),
    ({"prompt": [1, "a"]}, "prompt", "invalid_type"),
    ({"prompt": [[1], ["a"]]}, "prompt", "invalid_type"),
    ({"prompt": [1.5]}, "prompt", "invalid_type"),
    ({"prompt": [True]}, "prompt", "invalid_type"),
    ({"prompt": None}, "prompt", "missing_required_parameter"),
    ({"prompt": ""}, "prompt", "empty_prompt"),
    ({"prompt": []}, "prompt", "empty_prompt"),
    ({"prompt": [[]]}, "prompt", "empty_prompt"),
    ({"prompt": ["a", ""]}, "prompt", "empty_prompt"),
    ({"prompt": [257]}, "prompt", "token_out_of_vocabulary"),
    ({"prompt": [-1]}, "prompt", "token_out_of_vocabulary"),
    ({"prompt": [[1], [10**30]]}, "prompt", "token_out_of_vocabulary"),
    ({"prompt": "x" * 5000}, "prompt", "context_length_exceeded"),
    ({"prompt": ["a"] * 257}, "prompt", "above_limit"),
    ({"max_tokens": "5"}, "max_tokens", "invalid_type"),
    ({"max_tokens": 1.5}, "max_tokens", "invalid_type"),
    ({"max_tokens": True}, "max_tokens", "invalid_type"),
    ({"max_tokens": 0}, "max_tokens", "invalid_value"),
    ({"max_tokens": -1}, "max_tokens", "invalid_value"),
    ({"max_tokens": 10**20}, "max_tokens", "invalid_value"),
    ({"max_tokens": 5, "min_tokens": 6}, "min_tokens", "invalid_value"),
    ({"temperature": -0.1}, "temperature", "invalid_value"),
    ({"temperature": 1e9}, "temperature", "invalid_value"),
    ({"temperature": "hot"}, "temperature", "invalid_type"),
    ({"temperature": [1]}, "temperature", "invalid_type"),
    ({"top_p": 1.1}, "top_p", "invalid_value"),
    ({"top_k": -2}, "top_k", "invalid_value"),
    ({"top_k": 2**31}, "top_k", "invalid_value"),
    ({"min_p": -1}, "min_p", "invalid_value"),
    ({"seed": 2**64}, "seed", "invalid_value"),
    ({"seed": "a"}, "seed", "invalid_type"),
    ({"n": 0}, "n", "invalid_value"),
    ({"n": 129}, "n", "above_limit"),
    ({"n": {}}, "n", "invalid_type"),
    ({"stop": 5}, "stop", "invalid_type"),
    ({"stop": ["a", 5]}, "stop", "invalid_type"),
    ({"stop": [""]}, "stop", "invalid_value"),
    ({"stop": "x" * 257}, "stop", "invalid_value"),
    ({"stop": ["x"] * 17}, "stop", "above_limit"),
    ({"stop_token_ids": [300]}, "stop_token_ids", "token_out_of_vocabulary"),
    ({"stop_token_ids": ["a"]}, "stop_token_ids.0", "invalid_type"),
    ({"stop_token_ids": [1] * 300}, "stop_token_ids", "invalid_value"),
    ({"stream": "yes"}, "stream", "invalid_type"),
    ({"stream": 1}, "stream", "invalid_type"),
    ({"stream_options": {"include_usage": "yes"}}, "stream_options.include_usage", "invalid_type"),
    ({"stream_options": {"include": True}}, "stream_options.include", "unknown_parameter"),
    ({"stream_options": []}, "stream_options", "invalid_type"),
    ({"speculation": {"method": "magic"}}, "speculation.method", "unknown_method"),
    ({"speculation": {"max_nodes": 0}}, "speculation.max_nodes", "invalid_value"),
    ({"speculation": {"max_nodes": 61}}, "speculation.max_nodes", "above_limit"),
    ({"speculation": {"trace": "tree"}}, "speculation.trace", "invalid_value"),
    ({"speculation": {"trace": 1}}, "speculation.trace", "invalid_value"),
    ({"speculation": {"depth": 1}}, "speculation.depth", "unknown_parameter"),
    ({"speculation": {"sources": "context"}}, "speculation.sources", "invalid_type"),
    ({"speculation": {"sources": [1]}}, "speculation.sources.0", "invalid_type"),
    ({"speculation": "off"}, "speculation", "invalid_type"),
    ({"session_id": ""}, "session_id", "invalid_value"),
    ({"session_id": "a b"}, "session_id", "invalid_value"),
    ({"cache_salt": ""}, "cache_salt", "invalid_value"),
    ({"cache_salt": "x" * 257}, "cache_salt", "invalid_value"),
    ({"cache_salt": 5}, "cache_salt", "invalid_type"),
    ({"cache_salt": "\ud800"}, "cache_salt", "invalid_value"),
    ({"model": 5}, "model", "invalid_type"),
    ({"surprise": 1}, "surprise", "unknown_parameter"),
    ({"x" * 100_000: 1}, "x" * 97 + "...", "unknown_parameter"),
    ({"\ud800": 1}, "?", "unknown_parameter"),
    ({"prompt": "\ud800"}, "prompt", "invalid_unicode"),
    ({"logprobs": 21}, "logprobs", "above_limit"),
    ({"logprobs": True}, "logprobs", "invalid_type"),
    ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs", "invalid_value"),
    ({"best_of": 2, "n": 3}, "best_of", "invalid_value"),
    ({"best_of": 2, "stream": True}, "best_of", "invalid_value"),
    ({"best_of": 129}, "best_of", "above_limit"),
    ({"suffix": "x"}, "suffix", "unsupported_parameter"),
    ({"frequency_penalty": 2.5}, "frequency_penalty", "invalid_value"),
    ({"presence_penalty": False}, "presence_penalty", "invalid_type"),
    ({"repetition_penalty": 0}, "repetition_penalty", "invalid_value"),
    ({"repetition_penalty": 1e-300}, "repetition_penalty", "invalid_value"),
    ({"repetition_penalty": 0.009}, "repetition_penalty", "invalid_value"),
    ({"n": 100, "logprobs": 20, "max_tokens": 3000}, "logprobs", "above_limit"),
    ({"prompt": ["x" * 4000] * 100, "prompt_logprobs": 20, "max_tokens": 1}, "logprobs", "above_limit"),
    ({"logit_bias": {"x": 1}}, "logit_bias.x", "invalid_type"),
    ({"logit_bias": {"5": 101}}, "logit_bias.5", "invalid_value"),
    ({"logit_bias": {"257": 1}}, "logit_bias", "token_out_of_vocabulary"),
    ({"logit_bias": {str(i): 1 for i in range(1025)}}, "logit_bias", "above_limit"),
    ({"bad_words": [""]}, "bad_words.0", "invalid_value"),
    ({"bad_words": ["x"] * 129}, "bad_words", "above_limit"),
    ({"bad_words": [f"{number}" + "x" * 250 for number in range(20)]}, "bad_words", "above_limit"),
    ({"allowed_token_ids": []}, "allowed_token_ids", "invalid_value"),
    ({"allowed_token_ids": [257]}, "allowed_token_ids", "token_out_of_vocabulary"),
    ({"response_format": {"type": "xml"}}, "response_format.type", "invalid_value"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "invalid_value"),
    ({"guided_json": "{"}, "guided_json", "invalid_schema"),
    ({"guided_json": "[]"}, "guided_json", "invalid_schema"),
    ({"guided_json": 5}, "guided_json", "invalid_type"),
    ({"guided_json": json.loads('{"not":' * 40 + "{}" + "}" * 40)}, "guided_json", "above_limit"),
    ({"guided_regex": "x" * 70_000}, "guided_regex", "above_limit"),
    ({"guided_choice": [""]}, "guided_choice", "invalid_value"),
    ({"guided_choice": []}, "guided_choice", "invalid_value"),
    ({"guided_regex": "a", "guided_choice": ["a"]}, "guided_choice", "invalid_value"),
    ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs.choice", "invalid_value"),
    ({"structured_outputs": {"xml": "a"}}, "structured_outputs.xml", "unknown_parameter"),
    ({"tools": [{}]}, "tools", "unknown_parameter"),
    ({"prediction": {"content": "x"}}, "prediction.type", "missing_required_parameter"),
    ({"use_beam_search": True}, "use_beam_search", "unsupported_parameter"),
]


@pytest.mark.parametrize(("fields", "param", "code"), WRONG_FIELDS, ids=lambda value: str(value)[:40])
def test_a_wrong_field_is_named(server: RunningServer, fields: dict[str, Any], param: str, code: str) -> None:
    body = json.dumps({"model": server.model, "prompt": "hi"} | fields).encode()
    check_error(post_raw(server, body), 400, param, code)


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("completions", [1], "The body must be an object."),
        ("chat/completions", [1], "The body must be an object."),
        ("chat/completions", {"messages": [5]}, "messages.0 must be an object."),
        ("chat/completions", {"messages": []}, "messages must have at least 1 item."),
        ("completions", {"prompt": "a", "stop_token_ids": [1] * 257}, "stop_token_ids must have at most 256 items."),
        (
            "completions",
            {"prompt": "a", "speculation": {"trace": "tree"}},
            'speculation.trace must be true, false or "trees".',
        ),
    ],
)
def test_what_is_wrong_is_said_in_the_words_of_json(server: RunningServer, path: str, body: Any, message: str) -> None:
    response = server.http.post(f"/v1/{path}", json=body)
    assert (response.status_code, response.json()["error"]["message"]) == (400, message)


def post_raw(server: RunningServer, body: bytes, content_type: str = "application/json") -> httpx.Response:
    headers = {"Content-Type": content_type} if content_type else {}
    return server.http.post("/v1/completions", content=body, headers=headers)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b'{"prompt": "a"',
        b"null",
        b"[]",
        b'"text"',
        b"5",
        b"\xff\xfe",
        b'{"prompt": "\xff"}',
        b"[" * 100_000,
        b'{"a":' * 5000,
        b'{"prompt": "a", "seed": ' + b"9" * 5000 + b"}",
    ],
    ids=lambda body: repr(body[:20]),
)
def test_a_malformed_body_is_refused(server: RunningServer, body: bytes) -> None:
    response = post_raw(server, body)
    assert response.status_code == 400
    assert isinstance(response.json()["error"]["code"], str)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
@pytest.mark.parametrize("field", ["temperature", "top_p", "min_p", "max_tokens"])
def test_numbers_that_are_not_finite_are_refused(server: RunningServer, field: str, number: str) -> None:
    response = post_raw(server, f'{{"prompt": "a", "{field}": {number}}}'.encode())
    assert response.status_code == 400
    assert response.json()["error"]["param"] == field


@pytest.mark.parametrize("content_type", ["", "text/plain", "application/x-www-form-urlencoded"])
def test_a_body_not_declared_as_json_is_refused_with_the_reason(server: RunningServer, content_type: str) -> None:
    message = check_error(post_raw(server, b'{"prompt": "a"}', content_type), 400, None, "invalid_json")
    assert "application/json" in message


def test_both_lengths_are_in_the_message_of_a_too_long_prompt(server: RunningServer) -> None:
    response = server.post(prompt="x" * 4100, max_tokens=100)
    message = check_error(response, 400, "prompt", "context_length_exceeded")
    assert message == (
        "This model's maximum context length is 4096 tokens, but the request needs 4101: 4100 in the prompt and 1 for "
        "the reply."
    )


def test_the_default_reply_length_shrinks_to_what_is_left(server: RunningServer) -> None:
    assert server.post(prompt="x" * 4090).json()["usage"]["completion_tokens"] == 6


def test_more_choices_than_the_server_could_ever_hold_are_refused(server: RunningServer) -> None:
    check_error(server.post(prompt=["a"] * 200, n=100), 400, "n", "above_limit")


def test_a_bad_session_header_is_refused(server: RunningServer) -> None:
    headers = {"X-Session-Id": "a b"}
    response = server.http.post("/v1/completions", json={"prompt": "a"}, headers=headers)
    check_error(response, 400, "X-Session-Id", "invalid_value")
    headers = {"X-Session-Id": "chat-7"}
    response = server.http.post("/v1/completions", json={"prompt": "a"}, headers=headers)
    assert response.status_code == 200


def test_the_openai_client_raises_its_own_errors(server: RunningServer) -> None:
    client = server.client()
    with pytest.raises(BadRequestError) as refused:
        client.completions.create(model=server.model, prompt="a", temperature=-1)
    assert (refused.value.param, refused.value.code) == ("temperature", "invalid_value")
    assert refused.value.request_id
    with pytest.raises(NotFoundError) as missing:
        client.completions.create(model="other", prompt="a")
    assert missing.value.code == "model_not_found"


def test_an_unknown_model_is_404(server: RunningServer) -> None:
    check_error(server.post(prompt="a", model="gpt-5"), 404, "model", "model_not_found")
    check_error(server.get("/v1/models/gpt-5"), 404, "model", "model_not_found")


def test_unknown_paths_and_methods_have_the_same_shape(server: RunningServer) -> None:
    check_error(server.get("/v1/nothing"), 404, None, "not_found")
    wrong = server.get("/v1/completions")
    check_error(wrong, 405, None, "method_not_allowed")
    assert wrong.headers["Allow"] == "POST"


@pytest.mark.parametrize("is_chunked", [False, True])
def test_a_body_of_ten_megabytes_is_413(server: RunningServer, is_chunked: bool) -> None:
    body = json.dumps({"prompt": "x" * 10_000_000}).encode()
    pieces = (body[start : start + 65536] for start in range(0, len(body), 65536))
    response = server.http.post(
        "/v1/completions",
        content=pieces if is_chunked else body,
        headers={"Content-Type": "application/json"},
    )
    assert "4194304" in check_error(response, 413, None, "body_too_large")


def test_harmless_values_of_unsupported_fields_are_accepted(server: RunningServer) -> None:
    response = server.post(
        prompt="a",
        max_tokens=2,
        best_of=1,
        logprobs=None,
        suffix="",
        frequency_penalty=0,
        presence_penalty=0.0,
        logit_bias={},
        response_format={"type": "text"},
        user="someone",
        metadata={"a": "b"},
        stream_options={"include_usage": True},
        temperature=None,
        top_p=0,
        top_k=-1,
        seed=-5,
    )
    assert response.status_code == 200, response.text


def test_an_invalid_request_id_is_replaced(server: RunningServer) -> None:
    for offered in ("a b", "x" * 200, "<script>"):
        response = server.http.get("/health", headers={"X-Request-Id": offered})
        assert response.headers["x-request-id"].startswith("req_")


def test_errors_are_counted_by_code(server: RunningServer) -> None:
    before = server.metric("gander_errors_total")
    server.post(prompt="a", surprise=1)
    server.post(prompt="a", model="nope")
    assert server.metric("gander_errors_total") == before + 2
