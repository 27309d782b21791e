"""The tools of /v1/responses: which kinds there are, and what a model is shown of them.

Invariant: what a model is shown has one flat name, from which the client's own name and namespace are found again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, model_validator

from server.schemas.base import WireModel, refusal
from server.schemas.structured import JsonObject
from server.schemas.tools import FUNCTION_NAME, HOSTED, HostedTool, TextForm, ToolChoice, shown_name, tool_reader

MOST_OFFERED = 512  # tools of one request, those in namespaces included
DIRECT = (["direct"], ["direct", "programmatic"], ["programmatic", "direct"])  # the model may call it itself


class _CalledTool(WireModel):
    """What all tools share that the client runs. defer_loading changes nothing: all tools are shown from the start."""

    lenient: ClassVar[frozenset[str]] = frozenset({"defer_loading", "output_schema"})
    refused: ClassVar[dict[str, tuple[Any, ...]]] = {"allowed_callers": DIRECT, "async": (False,)}

    name: str = Field(pattern=FUNCTION_NAME)
    description: str = ""


class FunctionTool(_CalledTool):
    type: Literal["function"]
    parameters: JsonObject = Field(default={})
    strict: bool = False


class CustomFormat(WireModel):
    """The form of a custom tool's input: any text, or what a grammar in this syntax allows."""

    type: Literal["text", "grammar"]
    syntax: Literal["lark", "regex"] | None = None
    definition: str | None = Field(default=None, min_length=1)

    @model_validator(mode="after")
    def _require_grammar(self) -> CustomFormat:
        for name in ("syntax", "definition"):
            if (self.type == "grammar") != (getattr(self, name) is not None):
                raise refusal("invalid_value", f"{name} is required with type grammar, and with no other.", name)
        return self


class CustomTool(_CalledTool):
    """A tool whose call has free text instead of arguments."""

    type: Literal["custom"]
    format: CustomFormat = CustomFormat(type="text")

    @property
    def text_form(self) -> TextForm | None:
        """The grammar of the input; None for any text."""
        syntax, definition = self.format.syntax, self.format.definition
        return None if syntax is None or definition is None else TextForm(syntax, definition)


CalledTool = FunctionTool | CustomTool
CALLED: Mapping[str, type[WireModel]] = {"function": FunctionTool, "custom": CustomTool}


class NamespaceTool(WireModel):
    """Functions and custom tools under a name of their own, as those of an MCP server."""

    type: Literal["namespace"]
    name: str = Field(pattern=FUNCTION_NAME)
    description: str = ""
    tools: list[Annotated[CalledTool, BeforeValidator(tool_reader(CALLED))]] = Field(default=[], max_length=128)


KINDS: Mapping[str, type[WireModel]] = {**CALLED, "namespace": NamespaceTool, **dict.fromkeys(HOSTED, HostedTool)}
ResponseTool = Annotated[FunctionTool | CustomTool | NamespaceTool | HostedTool, BeforeValidator(tool_reader(KINDS))]


@dataclass(frozen=True, slots=True)
class OfferedTool:
    """A tool that a model may call. namespace: its name, "" for none; heading: what the namespace says of itself, where
    this tool is its first."""

    tool: CalledTool
    namespace: str = ""
    heading: str = ""

    @property
    def shown_name(self) -> str:
        return shown_name(self.tool.name, self.namespace)

    @property
    def is_custom(self) -> bool:
        return isinstance(self.tool, CustomTool)

    @property
    def place(self) -> dict[str, str]:
        """The name as items and choices have it: namespace beside name, where there is one."""
        return {"name": self.tool.name, **({"namespace": self.namespace} if self.namespace else {})}


class OfferedTools:
    """The tools that a model may call, by the names that it is shown."""

    def __init__(self, tools: Sequence[WireModel] = ()) -> None:
        self._tools = list(_offered(tools))
        self._by_name = {each.shown_name: each for each in self._tools}

    def __iter__(self) -> Iterator[OfferedTool]:
        return iter(self._tools)

    def find(self, name: str) -> OfferedTool | None:
        """The tool of this name; where none has it, the one tool that has it in its namespace."""
        found = self._by_name.get(name)
        if found is None:
            others = [each for each in self._tools if each.tool.name == name]
            found = others[0] if len(others) == 1 else None
        return found

    def resolved(self, choice: ToolChoice) -> ToolChoice:
        """The choice, by the names that the model is shown."""
        names = {
            name: found.shown_name for name in (choice.name, *(choice.allowed or ())) if (found := self.find(name))
        }
        allowed = None if choice.allowed is None else tuple(names.get(name, name) for name in choice.allowed)
        return choice._replace(name=names.get(choice.name, choice.name), allowed=allowed)


def _offered(tools: Sequence[WireModel]) -> Iterator[OfferedTool]:
    for tool in tools:
        if isinstance(tool, NamespaceTool):
            for number, each in enumerate(tool.tools):
                yield OfferedTool(each, tool.name, "" if number else tool.description)
        elif isinstance(tool, FunctionTool | CustomTool):
            yield OfferedTool(tool)
