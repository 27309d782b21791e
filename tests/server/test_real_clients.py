"""Chat, completions and responses of the bundled model through the official clients, streamed and plain."""

import json
import math
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.server.servers import RunningServer, but_for_the_cache, wait_until

NODE_FOLDER = Path(__file__).parent / "node"
MESSAGES: Any = [{"role": "user", "content": "Tell me a story about a fox."}]
SAMPLINGS: list[dict[str, Any]] = [{"temperature": 0}, {"temperature": 0.8, "seed": 5}]


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["greedy", "sampled"])
def test_chat_is_the_same_streamed_and_plain(real: RunningServer, sampling: dict[str, Any]) -> None:
    client = real.client()
    arguments: dict[str, Any] = {"model": real.model, "messages": MESSAGES, "max_completion_tokens": 60, "n": 2}
    plain = client.chat.completions.create(**arguments, **sampling)
    texts, reasons, usage = {0: "", 1: ""}, {}, None
    options = {"include_usage": True}
    for chunk in client.chat.completions.create(**arguments, **sampling, stream=True, stream_options=options):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            if choice.finish_reason:
                reasons[choice.index] = choice.finish_reason
    assert texts == {choice.index: choice.message.content for choice in plain.choices}
    assert reasons == {choice.index: choice.finish_reason for choice in plain.choices}
    assert but_for_the_cache(usage) == but_for_the_cache(plain.usage)
    assert all(texts.values())


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["greedy", "sampled"])
def test_a_response_says_what_the_chat_says(real: RunningServer, sampling: dict[str, Any]) -> None:
    client = real.client()
    chat = client.chat.completions.create(model=real.model, messages=MESSAGES, max_tokens=40, **sampling)
    arguments: dict[str, Any] = {"model": real.model, "input": MESSAGES[0]["content"], "max_output_tokens": 40}
    arguments |= {"temperature": sampling["temperature"], "extra_body": {"seed": sampling.get("seed")}}
    plain = client.responses.create(**arguments)
    events: list[Any] = list(client.responses.create(**arguments, stream=True))
    pieces = [event.delta for event in events if event.type == "response.output_text.delta"]
    final = events[-1].response
    assert final.status == plain.status
    assert "".join(pieces) == final.output_text == plain.output_text == chat.choices[0].message.content
    assert but_for_the_cache(final.usage) == but_for_the_cache(plain.usage)
    assert plain.usage is not None
    assert chat.usage is not None
    assert (plain.usage.input_tokens, plain.usage.output_tokens) == (
        chat.usage.prompt_tokens,
        chat.usage.completion_tokens,
    )


def test_log_probabilities_agree_between_forms_and_add_up(real: RunningServer) -> None:
    prompt = "def add(a, b):\n    return a + b\n\ndef sub(a, b):\n"
    body = {"prompt": prompt, "max_tokens": 20, "temperature": 0, "logprobs": 3}
    plain = real.post(**body).json()["choices"][0]
    logprobs = plain["logprobs"]
    assert "".join(logprobs["tokens"]) == plain["text"]
    for token, offset in zip(logprobs["tokens"], logprobs["text_offset"], strict=True):
        assert plain["text"][offset : offset + len(token)] == token
    for logprob, top in zip(logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True):
        assert logprob == max(top.values())  # greedy
        assert sum(math.exp(each) for each in top.values()) <= 1.0001
    echoed = real.post(**body, echo=True).json()["choices"][0]
    assert echoed["text"] == prompt + plain["text"]
    assert "".join(echoed["logprobs"]["tokens"]) == echoed["text"]
    assert echoed["logprobs"]["token_logprobs"][0] is None
    count = len(logprobs["tokens"])
    assert echoed["logprobs"]["tokens"][-count:] == logprobs["tokens"]
    for offset, token in zip(echoed["logprobs"]["text_offset"], echoed["logprobs"]["tokens"], strict=True):
        assert echoed["text"][offset : offset + len(token)] == token
    scored = real.post(prompt=echoed["text"], echo=True, max_tokens=0, logprobs=3).json()
    assert scored["usage"]["completion_tokens"] == 0
    again = scored["choices"][0]["logprobs"]["token_logprobs"]
    assert again[1:] == pytest.approx(echoed["logprobs"]["token_logprobs"][1:], abs=1e-4)


def test_best_of_returns_the_likeliest(real: RunningServer) -> None:
    body = {"prompt": "def add(a, b):\n", "max_tokens": 12, "temperature": 1.0, "seed": 3, "logprobs": 0}

    def mean(choice: dict[str, Any]) -> float:
        values = choice["logprobs"]["token_logprobs"]
        return float(sum(values) / len(values))

    everything = real.post(**body, n=6).json()
    best = real.post(**body, n=2, best_of=6).json()
    ranked = sorted(everything["choices"], key=mean, reverse=True)
    assert [choice["text"] for choice in best["choices"]] == [choice["text"] for choice in ranked[:2]]
    assert [choice["index"] for choice in best["choices"]] == [0, 1]
    assert but_for_the_cache(best["usage"]) == but_for_the_cache(everything["usage"])


def test_a_schema_is_kept_to(real: RunningServer) -> None:
    schema = {
        "type": "object",
        "properties": {"kind": {"enum": ["fox", "owl"]}, "age": {"type": "integer", "minimum": 0, "maximum": 99}},
        "required": ["kind", "age"],
        "additionalProperties": False,
    }
    form: Any = {"type": "json_schema", "json_schema": {"name": "animal", "schema": schema, "strict": True}}
    for sampling in SAMPLINGS:
        reply = real.client().chat.completions.create(
            model=real.model, messages=MESSAGES, response_format=form, max_tokens=80, **sampling
        )
        assert reply.choices[0].finish_reason == "stop"
        animal = json.loads(reply.choices[0].message.content or "")
        assert set(animal) == {"kind", "age"}
        assert animal["kind"] in ("fox", "owl")
        assert 0 <= animal["age"] <= 99


def test_a_required_tool_is_called_by_its_schema(real: RunningServer) -> None:
    parameters = {
        "type": "object",
        "properties": {"unit": {"enum": ["c", "f"]}},
        "required": ["unit"],
        "additionalProperties": False,
    }
    tool: Any = {"type": "function", "function": {"name": "weather", "parameters": parameters}}
    arguments: dict[str, Any] = {"model": real.model, "messages": MESSAGES, "tools": [tool], "temperature": 0}
    arguments |= {"max_tokens": 100, "tool_choice": "required", "parallel_tool_calls": False}
    plain = real.client().chat.completions.create(**arguments).choices[0]
    assert plain.finish_reason == "tool_calls"
    call: Any = (plain.message.tool_calls or [])[0]
    assert json.loads(call.function.arguments)["unit"] in ("c", "f")
    with real.client().chat.completions.stream(**arguments) as stream:
        streamed: Any = stream.get_final_completion().choices[0].message.tool_calls
    assert streamed[0].function.arguments == call.function.arguments


def test_a_prediction_is_counted(real: RunningServer) -> None:
    client = real.client()
    arguments: dict[str, Any] = {"model": real.model, "messages": MESSAGES, "temperature": 0, "max_tokens": 40}
    plain = client.chat.completions.create(**arguments)
    text = plain.choices[0].message.content
    predicted = client.chat.completions.create(**arguments, prediction={"type": "content", "content": text})
    assert predicted.choices[0].message.content == text
    assert predicted.usage is not None
    details = predicted.usage.completion_tokens_details
    assert details is not None
    assert (details.accepted_prediction_tokens or 0) >= 35
    assert (details.rejected_prediction_tokens or 0) <= 5


def test_the_client_sees_what_a_second_turn_need_not_run(real: RunningServer) -> None:
    client = real.client()
    messages: Any = [{"role": "user", "content": "Tell me of a dog that counts to seven and is asked for eight."}]
    arguments: dict[str, Any] = {"model": real.model, "temperature": 0, "max_completion_tokens": 60}
    first = client.chat.completions.create(messages=messages, **arguments)
    said: Any = {"role": "assistant", "content": first.choices[0].message.content}
    messages += [said, {"role": "user", "content": "And then?"}]
    options = {"include_usage": True}
    for chunk in client.chat.completions.create(messages=messages, **arguments, stream=True, stream_options=options):
        usage = chunk.usage
    assert first.usage is not None
    assert usage is not None
    assert usage.prompt_tokens_details is not None
    assert first.usage.prompt_tokens - 17 < (usage.prompt_tokens_details.cached_tokens or 0) < usage.prompt_tokens
    response = client.responses.create(
        model=real.model, input=messages, temperature=0, max_output_tokens=60, extra_body={"cache_salt": "another"}
    )
    assert response.usage is not None
    assert response.usage.input_tokens_details.cached_tokens == 0


def test_closing_the_stream_aborts(real: RunningServer) -> None:
    arguments: dict[str, Any] = {"model": real.model, "messages": MESSAGES, "max_tokens": 1500}
    stream = real.client().chat.completions.create(**arguments, stream=True, extra_body={"ignore_eos": True})
    next(iter(stream))
    assert real.served.client.num_open == 1
    stream.close()
    wait_until(lambda: real.served.client.num_open == 0)
    wait_until(lambda: real.metric("gander_running") == 0)


def test_the_raw_bytes_of_a_chat_stream(real: RunningServer) -> None:
    body = {"messages": MESSAGES, "max_tokens": 20, "temperature": 0, "stream": True}
    raw = real.http.post("/v1/chat/completions", json=body).content
    frames = raw.split(b"\n\n")
    assert frames[-2:] == [b"data: [DONE]", b""]
    chunks = [json.loads(frame.removeprefix(b"data: ")) for frame in frames[:-2]]
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1]["choices"][0] == {"index": 0, "delta": {}, "logprobs": None, "finish_reason": "length"}
    assert len({(chunk["id"], chunk["created"], chunk["object"]) for chunk in chunks}) == 1


@pytest.mark.slow
def test_the_node_client_reads_the_same(real: RunningServer, node_modules: Path) -> None:
    command = ["node", "client.mjs", f"{real.url}/v1", real.model]
    done = subprocess.run(command, cwd=node_modules, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    for name in ("chat", "completion", "response"):
        for reply in told[name].values():
            reply["usage"] = but_for_the_cache(reply["usage"])
        assert told[name]["plain"] == told[name]["streamed"], name
        assert told[name]["plain"]["text"]
    assert told["chat"]["plain"]["text"] == told["response"]["plain"]["text"]
    assert told["error"] == {"status": 400, "code": "invalid_value", "param": "temperature", "has_request_id": True}
    wait_until(lambda: real.served.client.num_open == 0)
