"""Runs Instructor against the server: it asks for one form as a tool, as JSON, by a schema and through Responses.

It was run with instructor 1.17.0:

    python -m venv clients && clients/bin/pip install instructor
    gander serve & until curl -sf http://127.0.0.1:8000/ready; do sleep 1; done
    clients/bin/python docs/examples/instructor_forms.py

JSON mode asks for any object, so that its form here has only optional fields. In the other modes a grammar makes every
reply follow the form, however small the model is.
"""

from __future__ import annotations

import argparse
import sys

import instructor
from openai import OpenAI
from pydantic import BaseModel, Field

QUESTION = [{"role": "user", "content": "Describe a fox."}]


class Animal(BaseModel):
    name: str = Field(max_length=20)
    legs: int = Field(ge=0, le=8)


class Note(BaseModel):
    text: str | None = None


def ask(client: OpenAI, mode: instructor.Mode, model: str, form: type[BaseModel], max_tokens: int) -> BaseModel:
    made = instructor.from_openai(client, mode=mode)
    fields = {"model": model, "messages": QUESTION, "response_model": form, "max_tokens": max_tokens}
    return made.chat.completions.create(**fields, temperature=0, max_retries=1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8000/v1")
    parser.add_argument("--model", default="gosling")
    arguments = parser.parse_args()
    modes = instructor.Mode
    asked = [(modes.TOOLS, Animal), (modes.JSON_SCHEMA, Animal), (modes.RESPONSES_TOOLS, Animal), (modes.JSON, Note)]
    with OpenAI(base_url=arguments.url, api_key="none", max_retries=0) as client:
        for mode, form in asked:
            made = ask(client, mode, arguments.model, form, 200)
            assert isinstance(made, form), made
            sys.stdout.write(f"{mode.name}: {made!r}\n")
        partial = instructor.from_openai(client, mode=modes.TOOLS).chat.completions.create_partial(
            model=arguments.model, messages=QUESTION, response_model=Animal, max_tokens=200, temperature=0
        )
        grown = list(partial)
        assert grown[-1].model_dump() == ask(client, modes.TOOLS, arguments.model, Animal, 200).model_dump()
        sys.stdout.write(f"TOOLS, streamed: {len(grown)} stages to the same {grown[-1]!r}\n")


if __name__ == "__main__":
    main()
