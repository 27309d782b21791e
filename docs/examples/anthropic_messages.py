"""Runs Anthropic's client against the server: plain and streamed, with tools and results, and compares with chats.

It was run with anthropic 2.12.0:

    python -m venv clients && clients/bin/pip install anthropic
    gander serve & until curl -sf http://127.0.0.1:8000/ready; do sleep 1; done
    clients/bin/python docs/examples/anthropic_messages.py

Every step prints its result, and raises where the result is wrong.
"""

from __future__ import annotations

import argparse
import json
import sys
import urllib.request
from typing import Any

import anthropic

STORY = [{"role": "user", "content": "Tell me a story about a fox."}]
SYSTEM = "You are a friendly teller of stories."
SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Oslo", "Rome"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "days"],
}
TOOL = {"name": "weather", "description": "The weather of a city", "input_schema": SCHEMA}


def chat(url: str, **body: Any) -> dict[str, Any]:
    """The chat endpoint's choice for the same messages."""
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{url}/v1/chat/completions", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request) as response:
        reply: dict[str, Any] = json.load(response)
    return reply["choices"][0]


def tell_a_story(client: anthropic.Anthropic, url: str, model: str, sampling: dict[str, Any]) -> None:
    """sampling: fields that this client has no arguments for."""
    body = {"model": model, "messages": STORY, "max_tokens": 60}
    plain = client.messages.create(**body, system=SYSTEM, extra_body=sampling)
    with client.messages.stream(**body, system=SYSTEM, extra_body=sampling) as stream:
        pieces = list(stream.text_stream)
        streamed = stream.get_final_message()
    told = chat(url, **body | sampling | {"messages": [{"role": "system", "content": SYSTEM}, *STORY]})
    assert "".join(pieces) == streamed.content[0].text == plain.content[0].text == told["message"]["content"]
    assert (streamed.stop_reason, streamed.usage.output_tokens) == (plain.stop_reason, plain.usage.output_tokens)
    counted = client.messages.count_tokens(model=model, messages=STORY, system=SYSTEM).input_tokens
    assert counted == plain.usage.input_tokens + plain.usage.cache_read_input_tokens
    sys.stdout.write(f"{sampling}: {len(pieces)} pieces, {plain.stop_reason}, {plain.usage.output_tokens} tokens\n")


def call_a_tool(client: anthropic.Anthropic, url: str, model: str) -> None:
    """The model must call a tool, then gets the result and continues."""
    question = [{"role": "user", "content": "How will the weather be?"}]
    body = {"model": model, "messages": question, "max_tokens": 120}
    greedy = {"temperature": 0}
    function = {"name": TOOL["name"], "description": TOOL["description"], "parameters": SCHEMA}
    called = chat(url, **body, **greedy, tools=[{"type": "function", "function": function}], tool_choice="required")
    arguments = json.loads(called["message"]["tool_calls"][0]["function"]["arguments"])
    body |= {"tools": [TOOL], "tool_choice": {"type": "any", "disable_parallel_tool_use": True}}
    plain = client.messages.create(**body, extra_body=greedy)
    with client.messages.stream(**body, extra_body=greedy) as stream:
        kinds = [event.type for event in stream]
        streamed = stream.get_final_message()
    (call,) = streamed.content
    assert call.input == plain.content[0].input == arguments, (call, plain, called)
    assert (call.type, call.name, streamed.stop_reason) == ("tool_use", "weather", "tool_use")
    assert kinds.count("input_json") > 1
    sys.stdout.write(f"called: {call.name}({call.input}), {kinds.count('input_json')} pieces\n")
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "rain"}
    turns = [*question, {"role": "assistant", "content": streamed.content}, {"role": "user", "content": [result]}]
    body |= {"messages": turns, "tool_choice": {"type": "none"}}
    reply = client.messages.create(**body, extra_body=greedy)
    sys.stdout.write(f"and then: {reply.content[0].text[:60]!r}\n")


def be_refused(client: anthropic.Anthropic, model: str) -> None:
    try:
        client.messages.create(model="another", messages=STORY, max_tokens=1)
    except anthropic.NotFoundError as error:
        sys.stdout.write(f"refused: {error.type}\n")
    else:
        raise AssertionError("a model that is not there answered")
    image = {"type": "image", "source": {"type": "url", "url": "https://example.org/fox.png"}}
    try:
        client.messages.create(model=model, messages=[{"role": "user", "content": [image]}], max_tokens=1)
    except anthropic.BadRequestError as error:
        sys.stdout.write(f"refused: {error.body['error']['message']}\n")
    else:
        raise AssertionError("an image was read")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--model", default="gosling")
    arguments = parser.parse_args()
    with anthropic.Anthropic(base_url=arguments.url, api_key="none", max_retries=0) as client:
        for sampling in ({"temperature": 0, "seed": 1}, {"temperature": 0.8, "seed": 5}):
            tell_a_story(client, arguments.url, arguments.model, sampling)
        call_a_tool(client, arguments.url, arguments.model)
        be_refused(client, arguments.model)


if __name__ == "__main__":
    main()
