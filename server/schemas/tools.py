"""The tools that a model may call, and which of them it must call. Chat completions and responses share these."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from pydantic import Field, JsonValue, PlainValidator, WithJsonSchema

from server.schemas.base import WireModel, refusal
from server.schemas.structured import JsonObject

FUNCTION_NAME = r"^[a-zA-Z0-9_.-]{1,128}$"


class FunctionDefinition(WireModel):
    """strict: arguments follow `parameters` also where a call is optional; in required calls they always do."""

    name: str = Field(pattern=FUNCTION_NAME)
    description: str = ""
    parameters: JsonObject = Field(default={})
    strict: bool = False

    @property
    def schema_of_arguments(self) -> dict[str, Any]:
        """`parameters`, with the type object where they name no type."""
        parameters = self.parameters
        return parameters if "type" in parameters or "$ref" in parameters else {"type": "object", **parameters}


class Tool(WireModel):
    is_shown: ClassVar[bool] = True  # with the others at the beginning of the prompt

    type: Literal["function"]
    function: FunctionDefinition


class DeferredTool(Tool):
    """A tool that a message of the conversation describes. It is offered like the others."""

    is_shown: ClassVar[bool] = False


MODES: tuple[Literal["none", "auto", "required"], ...] = ("none", "auto", "required")


class ToolChoice(NamedTuple):
    """name: the one function to call, with mode "named"; allowed: those that may be called, None for all."""

    mode: Literal["none", "auto", "required", "named"]
    name: str = ""
    allowed: tuple[str, ...] | None = None


def read_tool_choice(value: Any) -> ToolChoice:
    """Read OpenAI's forms: a mode, a function, or allowed tools; the latter two nested as in chat or flat as in
    responses."""
    for mode in MODES:
        if value == mode:
            return ToolChoice(mode)
    name = _function_name(value)
    if name is not None:
        return ToolChoice("named", name)
    if isinstance(value, dict) and value.get("type") == "allowed_tools":
        return _read_allowed(value.get("allowed_tools", value))
    raise refusal("invalid_value", "tool_choice must be none, auto, required, name a function, or list allowed_tools.")


def _read_allowed(value: Any) -> ToolChoice:
    tools = value.get("tools") if isinstance(value, dict) else None
    names = [_function_name(tool) for tool in tools] if isinstance(tools, list) else []
    known = tuple(name for name in names if name is not None)
    if not names or len(known) < len(names):
        raise refusal("invalid_value", "allowed_tools must have tools, a list of functions by their names.")
    for mode in ("auto", "required"):
        if value.get("mode") == mode:
            return ToolChoice(mode, allowed=known)
    raise refusal("invalid_value", "allowed_tools must have the mode auto or required.")


def _function_name(value: Any) -> str | None:
    """The name in {type, function: {name}} or {type, name}; None if `value` is neither."""
    if not isinstance(value, dict) or value.get("type") != "function":
        return None
    function = value.get("function", value)
    name = function.get("name") if isinstance(function, dict) else None
    return name if isinstance(name, str) else None


NESTED_FUNCTION: JsonValue = {
    "type": "object",
    "properties": {
        "type": {"const": "function"},
        "function": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]},
    },
    "required": ["type", "function"],
}
FLAT_FUNCTION: JsonValue = {
    "type": "object",
    "properties": {"type": {"const": "function"}, "name": {"type": "string"}},
    "required": ["type", "name"],
}
ALLOWED: dict[str, JsonValue] = {
    "mode": {"enum": ["auto", "required"]},
    "tools": {"type": "array", "items": {"anyOf": [NESTED_FUNCTION, FLAT_FUNCTION]}, "minItems": 1},
}
ALLOWED_TYPE: JsonValue = {"const": "allowed_tools"}
NESTED_ALLOWED: JsonValue = {"type": "object", "properties": ALLOWED, "required": ["mode", "tools"]}
TOOL_CHOICE_SCHEMA: dict[str, JsonValue] = {
    "anyOf": [
        {"enum": ["none", "auto", "required"]},
        NESTED_FUNCTION,
        FLAT_FUNCTION,
        {
            "type": "object",
            "properties": {"type": ALLOWED_TYPE, "allowed_tools": NESTED_ALLOWED},
            "required": ["type", "allowed_tools"],
        },
        {"type": "object", "properties": {"type": ALLOWED_TYPE, **ALLOWED}, "required": ["type", "mode", "tools"]},
    ]
}
ToolChoiceField = Annotated[ToolChoice, PlainValidator(read_tool_choice), WithJsonSchema(TOOL_CHOICE_SCHEMA)]


def check_tools(names: Sequence[str], choice: ToolChoice) -> None:
    """Raises a refusal where two tools have one name, or where the choice names a tool that is not there."""
    if len(set(names)) < len(names):
        raise refusal("invalid_value", "Two tools have the same name.", "tools")
    if (choice.mode in ("required", "named") or choice.allowed) and not names:
        raise refusal("invalid_value", "tool_choice needs tools.", "tool_choice")
    chosen = {choice.name} if choice.mode == "named" else set(choice.allowed or ())
    if not chosen <= set(names):
        raise refusal("invalid_value", "tool_choice names a function that is not among tools.", "tool_choice")
