"""Ollama's API over plain HTTP in front of the scripted worker: streamed and in one piece."""

import json
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from server.config import ServerSettings
from server.schemas.ollama.options import read_keep_alive
from server.schemas.ollama.replies import OllamaChatReply, OllamaGenerateReply, ShownModel
from tests.server.servers import CHAT_TEMPLATE, RunningServer, make_model_folder, running_server

TOOL: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Bern"}}\n</tool_call>'
THINKING = CHAT_TEMPLATE + "{# <think></think> #}{% if enable_thinking is false %}<no>{% endif %}"
REPLIES = {"chat": OllamaChatReply, "generate": OllamaGenerateReply}


def script(**fields: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": json.dumps(fields)}]


def lines_of(response: Any, path: str) -> list[dict[str, Any]]:
    assert response.headers["content-type"] == "application/x-ndjson"
    assert response.text.endswith("\n")
    lines = [json.loads(line) for line in response.text.splitlines()]
    for line in lines:
        assert TypeAdapter(REPLIES[path]).validate_python(line) == line
        datetime.fromisoformat(line["created_at"])
    return lines


def joined(lines: list[dict[str, Any]]) -> dict[str, Any]:
    """The reply that a stream's lines come to, put together as Ollama's clients do."""
    assert [line["done"] for line in lines] == [False] * (len(lines) - 1) + [True]
    whole = {**lines[-1]}
    for kind in ("response", "thinking"):
        if text := "".join(line.get(kind, "") for line in lines):
            whole[kind] = text
    if "message" in whole:
        messages = [line["message"] for line in lines]
        whole["message"] = {"role": "assistant", "content": "".join(each["content"] for each in messages)}
        if thought := "".join(each.get("thinking", "") for each in messages):
            whole["message"]["thinking"] = thought
        if calls := [call for each in messages for call in each.get("tool_calls", [])]:
            whole["message"]["tool_calls"] = calls
    if logprobs := [entry for line in lines for entry in line.get("logprobs", [])]:
        whole["logprobs"] = logprobs
    return whole


def timeless(reply: dict[str, Any]) -> dict[str, Any]:
    """The reply without times, and without the random ids of calls."""
    kept = {name: value for name, value in reply.items() if not name.endswith("_duration") and name != "created_at"}
    for call in kept.get("message", {}).get("tool_calls", []):
        assert call.pop("id")
    return kept


def ask(server: RunningServer, path: str, **body: Any) -> Any:
    return server.http.post(f"/api/{path}", json={"model": server.model} | body)


def both(server: RunningServer, path: str, **body: Any) -> dict[str, Any]:
    """The reply in one piece, which the streamed one must equal but for times."""
    response = ask(server, path, **body, stream=False)
    assert response.status_code == 200, response.text
    plain: dict[str, Any] = response.json()
    assert TypeAdapter(REPLIES[path]).validate_python(plain) == plain
    streamed = ask(server, path, **body)
    assert streamed.status_code == 200, streamed.text
    whole = joined(lines_of(streamed, path))
    for reply in (plain, whole):
        assert all(value >= 1 for name, value in reply.items() if name.endswith("_duration"))
    assert timeless(whole) == timeless(plain)
    return plain


def chat(server: RunningServer, **body: Any) -> dict[str, Any]:
    return both(server, "chat", **body)


def refused(server: RunningServer, path: str = "chat", status: int = 400, **body: Any) -> str:
    response = ask(server, path, **({"messages": script(say="a")} if path == "chat" else {"prompt": "a"}) | body)
    assert response.status_code == status, response.text
    assert list(response.json()) == ["error"]
    return str(response.json()["error"])


def told(server: RunningServer, *fields: str, **body: Any) -> dict[str, Any]:
    """These fields of the request that reaches the worker."""
    reply = ask(server, "chat", messages=script(tell=fields), stream=False, **body)
    assert reply.status_code == 200, reply.text
    answer: dict[str, Any] = json.loads(reply.json()["message"]["content"])
    return answer


@pytest.fixture(scope="module")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = make_model_folder(tmp_path_factory.mktemp("models") / "thinker", THINKING)
    with running_server(ServerSettings(model=str(folder), drain_seconds=2)) as running:
        yield running


def test_a_chat_says_what_openais_says(server: RunningServer) -> None:
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello"}]
    sampling = {"temperature": 0.8, "top_k": 40, "top_p": 0.9, "seed": 5}
    reply = chat(server, messages=messages, options={"num_predict": 20, "seed": 5})
    body = {"messages": messages, "max_tokens": 20} | sampling
    openais = server.http.post("/v1/chat/completions", json=body).json()
    assert reply["message"] == {"role": "assistant", "content": openais["choices"][0]["message"]["content"]}
    assert (reply["done"], reply["done_reason"]) == (True, "length")
    assert reply["eval_count"] == openais["usage"]["completion_tokens"] == 20
    assert reply["prompt_eval_count"] == openais["usage"]["prompt_tokens"]


def test_a_prompt_is_shown_by_the_template_and_a_raw_one_as_it_stands(server: RunningServer) -> None:
    prompt = json.dumps({"tell": ["prompt"]})
    asked = json.loads(both(server, "generate", prompt=prompt, system="be brief")["response"])["prompt"]
    assert bytes(asked).decode() == f"[system]\nbe brief\n[user]\n{prompt}\n[assistant]\n"
    asked = json.loads(both(server, "generate", prompt=prompt, raw=True)["response"])["prompt"]
    assert bytes(asked).decode() == prompt


def test_a_raw_reply_is_as_long_as_the_context_where_nobody_says_how_long(server: RunningServer) -> None:
    reply = ask(server, "generate", prompt="x" * 4000, raw=True, stream=False, options={"num_predict": -1}).json()
    assert reply["prompt_eval_count"] + reply["eval_count"] == 4096
    assert reply["done_reason"] == "length"


def test_options_reach_the_worker(server: RunningServer) -> None:
    options = {
        "num_predict": 1000.0,
        "temperature": 0.3,
        "top_k": 7,
        "top_p": 0.6,
        "min_p": 0.1,
        "repeat_penalty": 1.5,
        "presence_penalty": 0.5,
        "frequency_penalty": -0.5,
        "seed": 11,
        "num_ctx": 2048,
        "num_thread": 8,
    }
    sampling = told(server, "sampling", options=options)["sampling"]
    names = {"num_predict": "max_tokens", "repeat_penalty": "repetition_penalty"}
    for name in options.keys() - {"num_ctx", "num_thread"}:
        assert sampling[names.get(name, name)] == options[name], name
    defaults = told(server, "sampling")["sampling"]
    assert (defaults["temperature"], defaults["top_k"], defaults["top_p"]) == (0.8, 40, 0.9)
    assert defaults["repetition_penalty"] == 1
    off = told(server, "sampling", options={"repeat_penalty": 1.5, "repeat_last_n": 0})["sampling"]
    assert off["repetition_penalty"] == 1


def test_a_negative_seed_is_random(server: RunningServer) -> None:
    texts = {
        ask(server, "generate", prompt="a", stream=False, options={"seed": -1, "num_predict": 30}).json()["response"]
        for _ in range(2)
    }
    assert len(texts) == 2


def test_a_stop_string_ends_the_reply(server: RunningServer) -> None:
    for stop in (" t", ["x", " t"]):
        reply = chat(server, messages=script(say="one two three"), options={"stop": stop})
        assert (reply["message"]["content"], reply["done_reason"]) == ("one", "stop")


def test_a_call_comes_whole_with_an_object_of_arguments(server: RunningServer) -> None:
    reply = chat(server, messages=script(say=f"Let me see.{CALL}{CALL}"), tools=[TOOL])
    function = {"name": "weather", "arguments": {"city": "Bern"}}
    assert reply["message"]["content"] == "Let me see."
    assert reply["message"]["tool_calls"] == [
        {"function": {"index": 0} | function},
        {"function": {"index": 1} | function},
    ]
    assert reply["done_reason"] == "stop"


def test_a_call_that_is_cut_off_has_the_arguments_that_are_complete(server: RunningServer) -> None:
    text = CALL.replace('"Bern"', '"Bern", "unit": "cel')
    length = len(text.split("cel")[0]) + 3
    reply = chat(server, messages=script(say=text), tools=[TOOL], options={"num_predict": length})
    assert reply["message"]["tool_calls"][0]["function"]["arguments"] == {"city": "Bern"}
    assert reply["done_reason"] == "length"


def test_results_are_matched_with_calls_that_came_without_ids(tmp_path: Path) -> None:
    template = (
        "{% for m in messages %}{{ m.role }}:{{ m.content }}"
        "{% for c in m.tool_calls or [] %}<{{ c.id }} {{ c.function.name }} {{ c.function.arguments.n }}>{% endfor %}"
        "{% if m.tool_call_id %}({{ m.tool_call_id }} {{ m.name }}){% endif %}{{ '' }}\n{% endfor %}"
        '{"tell": ["prompt"]}\n'
    )
    calls = [{"function": {"name": name, "arguments": {"n": number}}} for number, name in enumerate("aba")]
    messages = [
        {"role": "assistant", "tool_calls": calls},
        {"role": "tool", "content": "B", "tool_name": "b"},
        {"role": "tool", "content": "A", "tool_name": "a"},
        {"role": "tool", "content": "C"},
        {"role": "tool", "content": "given", "tool_call_id": "mine"},
    ]
    folder = make_model_folder(tmp_path / "echo", template)
    with running_server(ServerSettings(model=str(folder), drain_seconds=2)) as server:
        reply = ask(server, "chat", messages=messages, stream=False)
    prompt = bytes(json.loads(reply.json()["message"]["content"])["prompt"]).decode()
    assert prompt.splitlines()[:5] == [
        "assistant:<call00000 a 0><call00001 b 1><call00002 a 2>",
        "tool:B(call00001 b)",
        "tool:A(call00000 a)",
        "tool:C(call00002 )",
        "tool:given(mine )",
    ]


def test_a_last_message_of_the_assistant_is_continued(server: RunningServer) -> None:
    messages = [*script(tell=["prompt"]), {"role": "assistant", "content": "I say"}]
    said = chat(server, messages=messages, options={"num_predict": 5})["message"]["content"]
    assert len(said) == 5
    body = {"messages": messages, "add_generation_prompt": False, "continue_final_message": True}
    count = server.http.post("/tokenize", json=body).json()["count"]
    assert chat(server, messages=messages, options={"num_predict": 5})["prompt_eval_count"] == count


def test_thoughts_are_apart_and_can_be_turned_off(thinker: RunningServer) -> None:
    said = script(say="<think>hm, 12</think>12")
    assert chat(thinker, messages=said)["message"] == {"role": "assistant", "content": "12", "thinking": "hm, 12"}
    reply = both(thinker, "generate", prompt=said[0]["content"], think=True)
    assert (reply["response"], reply["thinking"]) == ("12", "hm, 12")
    prompts = [bytes(told(thinker, "prompt", think=think)["prompt"]).decode() for think in (True, False)]
    assert [prompt.endswith("<no>") for prompt in prompts] == [False, True]


def test_a_model_that_does_not_reason_is_not_asked_to(server: RunningServer) -> None:
    for think in (True, "high"):
        assert refused(server, think=think) == "think: the model toy does not reason; leave it out."
    assert chat(server, messages=script(say="a"), think=False)["message"]["content"] == "a"
    assert "think" in refused(server, think="very much")


def test_a_format_constrains_the_reply(server: RunningServer) -> None:
    schema = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}
    grammar = told(server, "sampling", format=schema)["sampling"]["grammar"]
    assert grammar["kind"] == "json_schema"
    assert json.loads(grammar["text"])["required"] == ["age"]
    assert told(server, "sampling", format="json")["sampling"]["grammar"]["kind"] == "json_object"
    assert told(server, "sampling", format="")["sampling"]["grammar"] is None
    assert refused(server, format="yaml") == 'format must be "json" or a JSON schema.'
    assert refused(server, format={"type": "nothing"}).startswith("format: The schema")


def test_log_probabilities_are_those_of_the_text(server: RunningServer) -> None:
    reply = chat(server, messages=script(say="ab"), logprobs=True, top_logprobs=2)
    assert [entry["token"] for entry in reply["logprobs"]] == ["a", "b"]
    assert [len(entry["top_logprobs"]) for entry in reply["logprobs"]] == [2, 2]
    raw = both(server, "generate", prompt=json.dumps({"say": "ab"}), raw=True, logprobs=True)
    assert [entry["logprob"] for entry in raw["logprobs"]] == [-0.97, -0.98]
    assert "logprobs" not in chat(server, messages=script(say="ab"))
    assert "top_logprobs" in refused(server, top_logprobs=2)


def test_asking_for_nothing_loads_the_model(server: RunningServer) -> None:
    for path, said in (("chat", {"message": {"role": "assistant", "content": ""}}), ("generate", {"response": ""})):
        reply = ask(server, path, keep_alive="5m")
        assert reply.json().items() >= ({"done": True, "done_reason": "load"} | said).items()


def test_keep_alive_is_a_number_of_seconds_or_a_duration(server: RunningServer) -> None:
    values = {5: 5, 0: 0, 2.5: 2.5, "5m": 300, "1h30m": 5400, "300ms": 0.3, "10": 10}
    assert {value: read_keep_alive(value) for value in values} == pytest.approx(values)
    assert [read_keep_alive(value) for value in (-1, "-1", "-1m")] == [-1] * 3
    for wrong in ("soon", "5 m", "", True, [], "5d"):
        assert "keep_alive must be a number of seconds" in refused(server, keep_alive=wrong)


@pytest.mark.parametrize(
    ("path", "body", "sentence"),
    [
        ("chat", {"messages": [{"role": "user", "content": "a", "images": ["aGk="]}]}, "The model takes no pictures"),
        ("generate", {"images": ["aGk="]}, "The model takes no pictures: it reads text alone"),
        ("generate", {"images": ["aGk="], "raw": True}, "images is for prompts that a chat template shows"),
        ("generate", {"context": [1, 2]}, "context is not supported; send the whole conversation to /api/chat"),
        ("generate", {"template": "{{ .Prompt }}"}, "template is not supported"),
        ("generate", {"raw": True, "system": "be brief"}, "system cannot be given with raw"),
        ("generate", {"suffix": "b"}, "suffix: this model has no fill-in-the-middle tokens"),
        ("chat", {"options": {"mirostat": 1}}, "mirostat is not supported"),
        ("chat", {"options": {"temperature": -1}}, "options.temperature"),
        ("chat", {"options": {"num_predict": "many"}}, "options.num_predict"),
        ("chat", {"options": {"stop": ["a"] * 17}}, "options.stop: 17 is above"),
        ("chat", {"messages": [{"role": "user", "content": "x" * 5000}]}, "maximum context length"),
        ("chat", {"messages": [{"role": "alien", "content": "a"}]}, "messages.0.role"),
        ("chat", {"tools": [TOOL, TOOL]}, "Two tools have the same name"),
        ("chat", {"model": ""}, "model"),
    ],
)
def test_what_is_not_served_is_refused_by_name(
    server: RunningServer, path: str, body: dict[str, Any], sentence: str
) -> None:
    assert sentence in refused(server, path, **body)


def test_more_context_than_there_is_is_told(server: RunningServer) -> None:
    reply = ask(server, "chat", messages=script(say="a"), options={"num_ctx": 131072})
    assert "The context has 4096 tokens, not 131072" in reply.headers["x-gander-notice"]
    reply = ask(server, "chat", messages=script(say="a"), options={"num_ctx": 1024})
    assert "x-gander-notice" not in reply.headers


def test_an_error_after_the_first_line_is_a_line(tmp_path: Path) -> None:
    with running_server(ServerSettings(model=str(make_model_folder(tmp_path / "toy")), drain_seconds=2)) as server:
        reply = ask(server, "chat", messages=script(say="a" * 20, crash_after=2))
    lines = [json.loads(line) for line in reply.text.splitlines()]
    assert lines[0]["message"]["content"].startswith("a")
    assert list(lines[-1]) == ["error"]


def test_a_name_with_the_tag_latest_is_the_name_without(server: RunningServer) -> None:
    reply = chat(server, model=f"{server.model}:latest", messages=script(say="a"))
    assert reply["model"] == f"{server.model}:latest"
    assert "does not exist" in refused(server, status=404, model="other:latest")
    assert "does not exist" in refused(server, status=404, model=f"{server.model}:7b")


def test_models_are_listed_shown_and_running(server: RunningServer) -> None:
    (listed,) = server.get("/api/tags").json()["models"]
    (running,) = server.get("/api/ps").json()["models"]
    assert listed["name"] == listed["model"] == running["name"] == "toy:latest"
    assert listed["digest"] == running["digest"]
    assert len(bytes.fromhex(listed["digest"])) == 32
    assert running["context_length"] == 4096
    assert datetime.fromisoformat(running["expires_at"]).year == 9999
    shown = ask(server, "show", model=listed["name"]).json()
    assert TypeAdapter(ShownModel).validate_python(shown) == shown
    assert shown["template"] == CHAT_TEMPLATE
    assert shown["capabilities"] == ["completion", "tools"]
    assert shown["model_info"]["model.context_length"] == 4096
    assert server.http.post("/api/show", json={"name": "toy"}).json() == shown
    missing = ask(server, "show", model="other")
    assert missing.status_code == 404
    assert "does not exist" in missing.json()["error"]


def test_probes_find_a_server_of_a_version(server: RunningServer) -> None:
    version = server.get("/api/version").json()
    assert [int(part) for part in version["version"].split(".")] >= [0, 6, 4]
    assert server.http.head("/").status_code == server.http.head("/api/version").status_code == 200


def test_models_are_not_made_here(server: RunningServer) -> None:
    for path in ("push", "create", "copy"):
        reply = server.http.post(f"/api/{path}", json={"model": "toy"})
        assert reply.status_code == 501
        assert f"This server has no /api/{path}" in reply.json()["error"]


def test_curl_may_leave_out_the_content_type_and_a_web_page_may_not(server: RunningServer) -> None:
    data = json.dumps({"model": "toy", "messages": script(say="a"), "stream": False})
    form = {"content-type": "application/x-www-form-urlencoded"}
    assert server.http.post("/api/chat", content=data, headers=form).json()["message"]["content"] == "a"
    reply = server.http.post("/api/chat", content=data, headers=form | {"origin": "http://evil.example"})
    assert reply.status_code == 400
    assert "application/json" in reply.json()["error"]
    assert server.http.post("/v1/chat/completions", content=data, headers=form).status_code == 400


def test_a_flag_closes_it_and_keys_keep_it(tmp_path: Path) -> None:
    folder = make_model_folder(tmp_path / "toy")
    with running_server(ServerSettings(model=str(folder), ollama_api=False, drain_seconds=2)) as server:
        assert "--no-ollama-api" in refused(server, status=404)
        assert "/api/chat" not in server.get("/openapi.json").json()["paths"]
    settings = ServerSettings(model=str(folder), api_keys="secret", drain_seconds=2)
    with running_server(settings) as server:
        assert "API key" in refused(server, status=401)
        server.http.headers["authorization"] = "Bearer secret"
        assert chat(server, messages=script(say="a"))["message"]["content"] == "a"


def test_even_streams_are_padded_lines(tmp_path: Path) -> None:
    folder = make_model_folder(tmp_path / "toy")
    with running_server(ServerSettings(model=str(folder), coalesce_ms=5, drain_seconds=2)) as server:
        response = ask(server, "chat", messages=script(say="a word or two", delay=0.002))
    assert joined(lines_of(response, "chat"))["message"]["content"] == "a word or two"
    assert len(response.content) % 1024 == 0
