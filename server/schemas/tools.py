"""Tools a model may call, and which of them it must. Shared by chat completions and responses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field, JsonValue, PlainValidator, WithJsonSchema

from server.schemas.base import WireModel, refusal
from server.schemas.structured import JsonObject

FUNCTION_NAME = r"^[a-zA-Z0-9_.-]{1,64}$"


class FunctionDefinition(WireModel):
    """strict: arguments follow `parameters` also where a call is not required (there they always do)."""

    name: str = Field(pattern=FUNCTION_NAME)
    description: str = ""
    parameters: JsonObject = Field(default={})
    strict: bool = False

    @property
    def schema_of_arguments(self) -> dict[str, Any]:
        """`parameters`, which are an object's where they do not say their type."""
        parameters = self.parameters
        return parameters if "type" in parameters or "$ref" in parameters else {"type": "object", **parameters}


class Tool(WireModel):
    type: Literal["function"]
    function: FunctionDefinition


MODES: tuple[Literal["none", "auto", "required"], ...] = ("none", "auto", "required")


class ToolChoice(NamedTuple):
    """name: the one function to call, with mode "named"."""

    mode: Literal["none", "auto", "required", "named"]
    name: str = ""


def read_tool_choice(value: Any) -> ToolChoice:
    """OpenAI's forms: a mode, or the function of chat ({type, function: {name}}) or of responses ({type, name})."""
    for mode in MODES:
        if value == mode:
            return ToolChoice(mode)
    if isinstance(value, dict) and value.get("type") == "function":
        function = value.get("function", value)
        if isinstance(function, dict) and isinstance(function.get("name"), str):
            return ToolChoice("named", function["name"])
    raise refusal("invalid_value", "tool_choice must be none, auto, required, or name a function.")


TOOL_CHOICE_SCHEMA: dict[str, JsonValue] = {
    "anyOf": [
        {"enum": ["none", "auto", "required"]},
        {
            "type": "object",
            "properties": {
                "type": {"const": "function"},
                "function": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]},
            },
            "required": ["type", "function"],
        },
        {
            "type": "object",
            "properties": {"type": {"const": "function"}, "name": {"type": "string"}},
            "required": ["type", "name"],
        },
    ]
}
ToolChoiceField = Annotated[ToolChoice, PlainValidator(read_tool_choice), WithJsonSchema(TOOL_CHOICE_SCHEMA)]


def check_tools(names: Sequence[str], choice: ToolChoice) -> None:
    """Raise a refusal where names are double, or the choice is not among them."""
    if len(set(names)) < len(names):
        raise refusal("invalid_value", "Two tools have the same name.", "tools")
    if choice.mode in ("required", "named") and not names:
        raise refusal("invalid_value", "tool_choice needs tools.", "tool_choice")
    if choice.mode == "named" and choice.name not in names:
        raise refusal("invalid_value", "tool_choice names a function that is not among tools.", "tool_choice")
