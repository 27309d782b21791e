"""The tools that a model may call, and which of them it must call. Chat completions and responses share these."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from pydantic import BeforeValidator, ConfigDict, Field, JsonValue, PlainValidator, WithJsonSchema, model_validator

from server.http.errors import MAX_PARAM, shortened
from server.http.notices import tell
from server.schemas.base import WireModel, refusal
from server.schemas.structured import JsonObject

FUNCTION_NAME = r"^[a-zA-Z0-9_.-]{1,128}$"
# Tools that OpenAI runs, by their types. This server runs none.
HOSTED = (
    "web_search",
    "web_search_2025_08_26",
    "web_search_preview",
    "web_search_preview_2025_03_11",
    "file_search",
    "code_interpreter",
    "computer",
    "computer_use_preview",
    "mcp",
    "image_generation",
    "tool_search",
    "programmatic_tool_calling",
    "local_shell",
    "shell",
    "apply_patch",
)


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


class TextForm(NamedTuple):
    """The grammar of a text."""

    syntax: Literal["lark", "regex"]
    definition: str


class Tool(WireModel):
    is_shown: ClassVar[bool] = True  # with the others at the beginning of the prompt

    type: Literal["function"]
    function: FunctionDefinition

    @property
    def text_form(self) -> TextForm | None:
        """The grammar of the text that is all that a call has, if there is one."""
        return None


class TextTool(Tool):
    """A tool whose call has free text, which its function has as its only argument, `input`. form: its grammar."""

    form: TextForm | None = None

    @property
    def text_form(self) -> TextForm | None:
        return self.form


class DeferredTool(Tool):
    """A tool that a message of the conversation describes. It is offered like the others."""

    is_shown: ClassVar[bool] = False


class HostedTool(WireModel):
    """A tool that this server cannot run: accepted with whatever fields it has, and not offered to the model."""

    model_config = ConfigDict(extra="allow")

    type: str = Field(max_length=MAX_PARAM)

    @model_validator(mode="before")
    @classmethod
    def _drop_defaults(cls, data: Any) -> Any:
        if isinstance(data, dict) and isinstance(data.get("type"), str):
            kind = shortened(data["type"], MAX_PARAM)
            tell(f"Tools of type {kind} are not offered to the model: this server cannot run them.")
        return data


def tool_reader(
    kinds: Mapping[str, type[WireModel]], default: str = "", is_hosted: Callable[[str], bool] = lambda _: False
) -> Callable[[Any], Any]:
    """A validator that reads a tool by its type, which is checked before all other fields. default: the type where none
    is given."""
    known = ", ".join(dict.fromkeys(kind for kind, model in kinds.items() if model is not HostedTool))

    def read(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        kind = value.get("type") or default
        if not kind:
            raise refusal("missing_required_parameter", "A tool must have a type.", "type")
        model = kinds.get(kind) if isinstance(kind, str) else None
        if model is None and isinstance(kind, str) and is_hosted(kind):
            model = HostedTool
        if model is None:
            shown = shortened(str(kind), MAX_PARAM)
            message = f"There are no tools of type {shown} here; those that a model can be offered are of type {known}."
            raise refusal("invalid_value", message, "type")
        return model.model_validate(value)

    return read


CHAT_KINDS: Mapping[str, type[WireModel]] = {"function": Tool, **dict.fromkeys(HOSTED, HostedTool)}
ChatTool = Annotated[Tool | HostedTool, BeforeValidator(tool_reader(CHAT_KINDS))]


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
    name = _tool_name(value)
    if name is not None:
        return ToolChoice("named", name)
    if _is_hosted(value):
        raise refusal("unsupported_parameter", f"tool_choice: this server cannot run {value['type']}.")
    if isinstance(value, dict) and value.get("type") == "allowed_tools":
        return _read_allowed(value.get("allowed_tools", value))
    raise refusal("invalid_value", "tool_choice must be none, auto, required, name a function, or list allowed_tools.")


def _read_allowed(value: Any) -> ToolChoice:
    tools = value.get("tools") if isinstance(value, dict) else None
    names = [_tool_name(tool) for tool in tools if not _is_hosted(tool)] if isinstance(tools, list) else []
    known = tuple(name for name in names if name is not None)
    if not tools or not isinstance(tools, list) or len(known) < len(names):
        raise refusal("invalid_value", "allowed_tools must have tools, a list of functions by their names.")
    if value.get("mode") == "required" and not known:
        raise refusal("unsupported_parameter", "tool_choice: this server cannot run any of the allowed tools.")
    for mode in ("auto", "required"):
        if value.get("mode") == mode:
            return ToolChoice(mode, allowed=known)
    raise refusal("invalid_value", "allowed_tools must have the mode auto or required.")


def _tool_name(value: Any) -> str | None:
    """The name in {type, function: {name}} or {type, name}, after that of a namespace beside it; None if `value` is
    neither."""
    if not isinstance(value, dict) or value.get("type") not in ("function", "custom"):
        return None
    tool = value.get(value["type"], value)
    name, namespace = (tool.get("name"), tool.get("namespace")) if isinstance(tool, dict) else (None, None)
    if not isinstance(name, str) or not isinstance(namespace, str | None):
        return None
    return shown_name(name, namespace)


def shown_name(name: str, namespace: str | None) -> str:
    """The flat name by which a model is shown, and calls, what has a name in a namespace."""
    return f"{namespace}.{name}" if namespace else name


def _is_hosted(value: Any) -> bool:
    return isinstance(value, dict) and value.get("type") in HOSTED


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
    "properties": {
        "type": {"enum": ["function", "custom"]},
        "name": {"type": "string"},
        "namespace": {"type": "string"},
    },
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
    """Raises a refusal where two tools have one name, or where the choice names a tool that is not there. names: of the
    tools that are offered."""
    if len(set(names)) < len(names):
        raise refusal("invalid_value", "Two tools have the same name.", "tools")
    if (choice.mode in ("required", "named") or choice.allowed) and not names:
        raise refusal("invalid_value", "tool_choice needs tools that the model can be offered.", "tool_choice")
    chosen = {choice.name} if choice.mode == "named" else set(choice.allowed or ())
    if not chosen <= set(names):
        raise refusal("invalid_value", "tool_choice names a function that is not among tools.", "tool_choice")
