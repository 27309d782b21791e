"""Ollama's own clients, of Python and of JavaScript, in front of the bundled model."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ollama
import pytest

from server.config import ServerSettings
from server.engine_client.processes.worker_process import WORKER_COMMAND
from tests.server.servers import PATIENCE, RunningServer, running_server, wait_until

MESSAGES: Any = [{"role": "user", "content": "Tell me a story about a fox."}]
OPTIONS = {"temperature": 0, "num_predict": 40}
SCHEMA: dict[str, Any] = {"type": "object", "properties": {"n": {"enum": [1, 2, 3]}}, "required": ["n"]}


@pytest.fixture(scope="module")
def real() -> Iterator[RunningServer]:
    """One that has told no story yet: a reply that it drafts whole comes in one piece."""
    with running_server(ServerSettings(drain_seconds=2), WORKER_COMMAND) as server:
        yield server


@pytest.fixture
def client(real: RunningServer) -> Iterator[ollama.Client]:
    with ollama.Client(host=real.url, timeout=PATIENCE) as client:
        yield client


def test_a_chat_is_the_same_streamed_and_whole_and_what_openais_client_gets(
    real: RunningServer, client: ollama.Client
) -> None:
    whole = client.chat(model=real.model, messages=MESSAGES, options=OPTIONS)
    chunks = list(client.chat(model=real.model, messages=MESSAGES, options=OPTIONS, stream=True))
    assert "".join(chunk.message.content or "" for chunk in chunks) == whole.message.content
    assert len(chunks) > 2
    last = chunks[-1]
    assert (last.done, last.done_reason, last.eval_count) == (True, whole.done_reason, whole.eval_count)
    openais = real.client().chat.completions.create(model=real.model, messages=MESSAGES, max_tokens=40, temperature=0)
    assert whole.message.content == openais.choices[0].message.content
    assert openais.usage is not None
    assert (whole.prompt_eval_count, whole.eval_count) == (
        openais.usage.prompt_tokens,
        openais.usage.completion_tokens,
    )


def test_a_prompt_is_answered_and_continued(real: RunningServer, client: ollama.Client) -> None:
    answered = client.generate(model=real.model, prompt=MESSAGES[0]["content"], options=OPTIONS)
    assert answered.response == client.chat(model=real.model, messages=MESSAGES, options=OPTIONS).message.content
    prompt = "def add(a, b):\n"
    raw = client.generate(model=real.model, prompt=prompt, raw=True, options=OPTIONS)
    assert raw.response == real.post(prompt=prompt, max_tokens=40, temperature=0).json()["choices"][0]["text"]


def test_a_reply_follows_its_format(real: RunningServer, client: ollama.Client) -> None:
    reply = client.chat(model=real.model, messages=MESSAGES, format=SCHEMA, options={"seed": 3})
    assert json.loads(reply.message.content or "")["n"] in (1, 2, 3)


def test_a_function_is_offered_and_its_result_taken(real: RunningServer, client: ollama.Client) -> None:
    def weather(city: str) -> str:
        """The weather of a city.

        Args:
          city: its name
        """
        return f"Rain in {city}."

    call = {"function": {"name": "weather", "arguments": {"city": "Bern"}}}
    messages = [
        *MESSAGES,
        ollama.Message(role="assistant", tool_calls=[ollama.Message.ToolCall.model_validate(call)]),
        {"role": "tool", "tool_name": "weather", "content": weather("Bern")},
    ]
    reply = client.chat(model=real.model, messages=messages, tools=[weather], options=OPTIONS)
    assert reply.done
    assert reply.eval_count


def test_models_are_listed_and_shown_and_errors_are_read(real: RunningServer, client: ollama.Client) -> None:
    (model,) = client.list().models
    assert model.model == f"{real.model}:latest"
    assert client.ps().models[0].model == model.model
    shown = client.show(model.model)
    assert shown.details is not None
    assert shown.modelinfo is not None
    assert shown.modelinfo[f"{shown.details.family}.context_length"] == real.served.client.ready.max_model_len
    for wrong, status in (({"model": "other"}, 404), ({"options": {"temperature": -1}}, 400)):
        with pytest.raises(ollama.ResponseError) as caught:
            client.chat(**({"model": real.model, "messages": MESSAGES} | wrong))
        assert caught.value.status_code == status
        assert "{" not in caught.value.error


@pytest.mark.slow
def test_the_node_client_reads_the_same(real: RunningServer, client: ollama.Client, node_modules: Path) -> None:
    arguments = ["node", "ollama.mjs", real.url, real.model]
    done = subprocess.run(arguments, cwd=node_modules, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    text = client.chat(model=real.model, messages=MESSAGES, options=OPTIONS).message.content
    assert told["chat"] == {"plain": text, "streamed": text, "done": "length"}
    assert told["generate"] == {"plain": text, "streamed": text}
    assert told["error"] == {"status": 404, "has_sentence": True}
    assert told["models"] == [f"{real.model}:latest"]
    wait_until(lambda: real.served.client.num_open == 0)
