"""The requests of Ollama's API: what clients may send."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, JsonValue, WithJsonSchema, model_validator

from server.schemas.base import WireModel, refusal
from server.schemas.generation import Text
from server.schemas.messages import MAX_CALLS
from server.schemas.ollama.options import KeepAlive, OllamaOptions
from server.schemas.structured import JsonObject
from server.schemas.tools import Tool, ToolChoice, check_tools

MAX_NAME = 512
EFFORTS = ("low", "medium", "high")


def _read_format(value: Any) -> Any:
    if value not in ("", "json") and not isinstance(value, dict):
        raise refusal("invalid_value", 'format must be "json" or a JSON schema.')
    return value


def _read_think(value: Any) -> Any:
    if not isinstance(value, bool) and value not in EFFORTS:
        raise refusal("invalid_value", "think must be true, false, low, medium or high.")
    return value


def _read_inputs(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


FORMAT_SCHEMA: dict[str, JsonValue] = {"anyOf": [{"enum": ["", "json"]}, {"type": "object"}]}
THINK_SCHEMA: dict[str, JsonValue] = {"anyOf": [{"type": "boolean"}, {"enum": [*EFFORTS]}]}
Format = Annotated[str | JsonObject, BeforeValidator(_read_format), WithJsonSchema(FORMAT_SCHEMA)]
Think = Annotated[bool | str, BeforeValidator(_read_think), WithJsonSchema(THINK_SCHEMA)]
ModelName = Annotated[str, Field(min_length=1, max_length=MAX_NAME)]


class ModelRequest(WireModel):
    """What every request has: the model by its name, which older clients call `name`."""

    lenient: ClassVar[frozenset[str]] = frozenset({"verbose"})

    model: ModelName

    @model_validator(mode="before")
    @classmethod
    def _take_the_older_name(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("name") is not None and data.get("model") in (None, ""):
            return {key: value for key, value in data.items() if key != "name"} | {"model": data["name"]}
        return data


class ShowRequest(ModelRequest):
    """POST /api/show."""


class PullRequest(ModelRequest):
    """POST /api/pull."""

    lenient: ClassVar[frozenset[str]] = frozenset({"insecure"})

    stream: bool = True


class DeleteRequest(ModelRequest):
    """DELETE /api/delete."""


class EmbedRequest(ModelRequest):
    """POST /api/embed. truncate: an input that is too long loses its end, instead of being refused."""

    input: Annotated[
        list[str],
        BeforeValidator(_read_inputs),
        WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}),
    ]
    truncate: bool = True
    dimensions: int | None = Field(default=None, ge=1)
    options: OllamaOptions = OllamaOptions()
    keep_alive: KeepAlive | None = None


class EmbeddingsRequest(ModelRequest):
    """POST /api/embeddings, the older form, of one prompt."""

    prompt: str
    options: OllamaOptions = OllamaOptions()
    keep_alive: KeepAlive | None = None


class GeneratingRequest(ModelRequest):
    """The fields that /api/chat and /api/generate share. `truncate` and `shift` are of contexts that lose their
    beginning, which those of this server do not."""

    lenient: ClassVar[frozenset[str]] = frozenset({"truncate", "shift"})

    stream: bool = True
    format: Format | None = None
    options: OllamaOptions = OllamaOptions()
    think: Think | None = Field(default=None, description="Whether, or how much, the model reasons before it answers")
    keep_alive: KeepAlive | None = None
    logprobs: bool = False
    top_logprobs: int | None = Field(default=None, ge=0, description="Needs logprobs")

    @model_validator(mode="after")
    def _require_logprobs(self) -> GeneratingRequest:
        if self.top_logprobs and not self.logprobs:
            raise refusal("invalid_value", "top_logprobs needs logprobs to be true.", "top_logprobs")
        return self


class CalledFunction(WireModel):
    lenient: ClassVar[frozenset[str]] = frozenset({"index", "description"})

    name: str = Field(min_length=1, max_length=256)
    arguments: JsonObject = Field(default={})


class OllamaCall(WireModel):
    lenient: ClassVar[frozenset[str]] = frozenset({"type"})

    id: str = Field(default="", max_length=256)
    function: CalledFunction


class OllamaMessage(WireModel):
    """images: files in base64, shown before the content. tool_name, tool_call_id: which call a message of role tool
    answers; without them the first without an answer."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Text = ""
    images: list[str] = Field(default=[])
    thinking: str | None = None
    tool_calls: list[OllamaCall] = Field(default=[], max_length=MAX_CALLS)
    tool_name: str | None = Field(default=None, max_length=256)
    tool_call_id: str | None = Field(default=None, max_length=256)
    name: str | None = Field(default=None, max_length=256, description="tool_name, as older clients call it")

    @model_validator(mode="after")
    def _require_a_caller(self) -> OllamaMessage:
        if self.tool_calls and self.role != "assistant":
            raise refusal("invalid_value", "Only an assistant's message may have tool_calls.", "tool_calls")
        return self


class OllamaChatRequest(GeneratingRequest):
    """POST /api/chat. Without messages it loads the model."""

    messages: list[OllamaMessage] = Field(default=[], fail_fast=True)
    tools: list[Tool] = Field(default=[], max_length=128)

    @model_validator(mode="after")
    def _require_distinct_tools(self) -> OllamaChatRequest:
        check_tools([tool.function.name for tool in self.tools], ToolChoice("auto"))
        return self


class OllamaGenerateRequest(GeneratingRequest):
    """POST /api/generate. Without a prompt it loads the model. images: files in base64, shown before the prompt."""

    refused: ClassVar[dict[str, tuple[Any, ...]]] = {
        "context": ([],),
        "template": ("",),
        **dict.fromkeys(("width", "height", "steps"), (0,)),
    }
    explained: ClassVar[dict[str, str]] = {
        "context": "send the whole conversation to /api/chat, whose beginning is found in the cache",
        "template": "the model's own chat template is used, or none with raw",
        **dict.fromkeys(("width", "height", "steps"), "this server generates no images"),
    }

    prompt: str = ""
    images: list[str] = Field(default=[])
    suffix: str = Field(default="", description="Text after the reply, for models trained to fill in the middle")
    system: str = ""
    raw: bool = Field(default=False, description="The prompt is the model's as it stands, without a template")

    @model_validator(mode="after")
    def _require_consistency(self) -> OllamaGenerateRequest:
        if self.raw and self.system:
            raise refusal("invalid_value", "system cannot be given with raw, which shows the prompt alone.", "system")
        if self.suffix and self.system:
            raise refusal("invalid_value", "system cannot be given with suffix, which has no conversation.", "system")
        for name in ("think", "images"):
            if getattr(self, name) and (self.raw or self.suffix):
                message = f"{name} is for prompts that a chat template shows, without raw and suffix."
                raise refusal("invalid_value", message, name)
        return self
