"""Runs an agent of openai-agents against the server, through Responses and through chat: calls, forms, streams, turns.

It was run with openai-agents 0.24.0:

    python -m venv clients && clients/bin/pip install openai-agents
    gander serve & until curl -sf http://127.0.0.1:8000/ready; do sleep 1; done
    clients/bin/python docs/examples/openai_agents.py

Every step prints its result, and raises where the result is wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from typing import Annotated

from agents import (
    Agent,
    Model,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    StopAtTools,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI
from pydantic import BaseModel, Field

SHORT = ModelSettings(temperature=0, max_tokens=600)
FORCED = ModelSettings(temperature=0, max_tokens=100, tool_choice="required", parallel_tool_calls=False)


class Animal(BaseModel):
    name: str = Field(max_length=20)
    legs: int = Field(ge=0, le=8)


Small = Annotated[int, Field(ge=0, le=99)]  # a small model would write digits for ever


@function_tool
def add(first: Small, second: Small) -> str:
    """Add two numbers."""
    return str(first + second)


async def try_model(name: str, model: Model) -> None:
    plain = Agent(name="teller", model=model, model_settings=SHORT)
    told = await Runner.run(plain, "Tell me a story about a fox.")
    assert told.final_output
    streamed = Runner.run_streamed(plain, "Tell me a story about a fox.")
    async for _ in streamed.stream_events():
        pass
    assert streamed.final_output == told.final_output
    say(name, "text, streamed and plain alike", told.final_output[:60])

    shaped = Agent(name="zoologist", model=model, model_settings=SHORT, output_type=Animal)
    animal = (await Runner.run(shaped, "Describe a fox.")).final_output_as(Animal)
    say(name, "a form", repr(animal))

    stop = StopAtTools(stop_at_tool_names=["add"])
    caller = Agent(name="adder", model=model, model_settings=FORCED, tools=[add], tool_use_behavior=stop)
    say(name, "a call that had to come", (await Runner.run(caller, "Add 2 and 3.")).final_output)

    both = Agent(name="both", model=model, model_settings=FORCED, tools=[add], output_type=Animal)
    result = await Runner.run(both, "Add 2 and 3, then describe a fox.")
    kinds = [item.type for item in result.new_items]
    assert kinds[:2] == ["tool_call_item", "tool_call_output_item"], kinds
    say(name, "a call beside a form, then the form", repr(result.final_output_as(Animal)))


async def try_turns(model: Model) -> None:
    """The server stores the first response; the second turn sends only what is new."""
    agent = Agent(name="teller", model=model, model_settings=SHORT)
    first = await Runner.run(agent, "Tell me a story about a fox.")
    second = await Runner.run(agent, "And then?", previous_response_id=first.last_response_id)
    sent = second.raw_responses[0].usage.input_tokens
    assert sent > first.raw_responses[0].usage.input_tokens + first.raw_responses[0].usage.output_tokens
    say("responses", "a second turn by previous_response_id", f"{sent} tokens of conversation")


def say(name: str, what: str, came: str) -> None:
    sys.stdout.write(f"{name}: {what}: {came!r}\n")


async def run(url: str, model: str) -> None:
    set_tracing_disabled(True)
    async with AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
        responses = OpenAIResponsesModel(model=model, openai_client=client)
        await try_model("responses", responses)
        await try_turns(responses)
        await try_model("chat", OpenAIChatCompletionsModel(model=model, openai_client=client))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8000/v1")
    parser.add_argument("--model", default="gosling")
    arguments = parser.parse_args()
    asyncio.run(run(arguments.url, arguments.model))
