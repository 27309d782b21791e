"""Runs a pydantic-ai agent against the server, through chat and through Responses: text, forms, tools, streams.

It was run with pydantic-ai-slim 2.38.0:

    python -m venv clients && clients/bin/pip install 'pydantic-ai-slim[openai]'
    gander serve & until curl -sf http://127.0.0.1:8000/ready; do sleep 1; done
    clients/bin/python docs/examples/pydantic_agent.py
"""

from __future__ import annotations

import argparse
import asyncio
import sys

from pydantic import BaseModel, Field
from pydantic_ai import Agent, NativeOutput, ToolOutput
from pydantic_ai.models import Model
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

SETTINGS = {"temperature": 0.0, "max_tokens": 200}


class Animal(BaseModel):
    name: str = Field(max_length=20)
    legs: int = Field(ge=0, le=8)


async def try_model(name: str, model: Model) -> None:
    teller = Agent(model, model_settings=SETTINGS)
    told = await teller.run("Tell me a story about a fox.")
    async with teller.run_stream("Tell me a story about a fox.") as stream:
        pieces = [piece async for piece in stream.stream_text(delta=True)]
    assert "".join(pieces) == told.output
    say(name, "text, streamed and plain alike", told.output[:60])
    further = await teller.run("And then?", message_history=told.all_messages())
    assert further.usage.input_tokens > told.usage.input_tokens
    say(name, "a second turn", further.output[:60])
    for form in (ToolOutput(Animal), NativeOutput(Animal)):
        shaped = Agent(model, output_type=form, model_settings=SETTINGS)
        say(name, type(form).__name__, repr((await shaped.run("Describe a fox.")).output))


def say(name: str, what: str, came: str) -> None:
    sys.stdout.write(f"{name}: {what}: {came!r}\n")


async def run(url: str, model: str) -> None:
    provider = OpenAIProvider(base_url=url, api_key="none")
    await try_model("chat", OpenAIChatModel(model, provider=provider))
    await try_model("responses", OpenAIResponsesModel(model, provider=provider))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8000/v1")
    parser.add_argument("--model", default="gosling")
    arguments = parser.parse_args()
    asyncio.run(run(arguments.url, arguments.model))
