"""The replies of Ollama's API. Durations are nanoseconds, times RFC 3339."""

from __future__ import annotations

from typing import (
    Any,
    Literal,
    NotRequired,  # pydantic wants these before Python 3.12
)

from typing_extensions import TypedDict

from server.schemas.chat import TokenLogprob


class OllamaError(TypedDict):
    error: str


class ReplyFunction(TypedDict):
    index: int
    name: str
    arguments: dict[str, Any]


class ReplyCall(TypedDict):
    id: str
    function: ReplyFunction


class ReplyMessage(TypedDict):
    role: Literal["assistant"]
    content: str
    thinking: NotRequired[str]
    tool_calls: NotRequired[list[ReplyCall]]


class Ended(TypedDict):
    """What a reply, or the last line of a stream, has beside what the others have. load_duration: until the prompt
    began to run; done_reason: load, where nothing was asked."""

    done_reason: NotRequired[Literal["stop", "length", "load"]]
    total_duration: NotRequired[int]
    load_duration: NotRequired[int]
    prompt_eval_count: NotRequired[int]
    prompt_eval_duration: NotRequired[int]
    eval_count: NotRequired[int]
    eval_duration: NotRequired[int]


class OllamaReply(Ended):
    """The fields of /api/chat and /api/generate alike."""

    model: str
    created_at: str
    done: bool
    logprobs: NotRequired[list[TokenLogprob]]


class OllamaChatReply(OllamaReply):
    """A line of a streamed chat, or a whole one."""

    message: ReplyMessage


class OllamaGenerateReply(OllamaReply):
    """A line of a streamed reply, or a whole one."""

    response: str
    thinking: NotRequired[str]


class EmbedReply(TypedDict):
    """embeddings: vectors of length one, in the order of the inputs."""

    model: str
    embeddings: list[list[float]]
    total_duration: int
    load_duration: int
    prompt_eval_count: int


class EmbeddingsReply(TypedDict):
    embedding: list[float]


class PullStatus(TypedDict):
    """A line of a pull. total, completed: bytes of all its files. error: why it broke off, in place of all else."""

    status: NotRequired[str]
    total: NotRequired[int]
    completed: NotRequired[int]
    error: NotRequired[str]


class ModelDetails(TypedDict):
    parent_model: str
    format: str
    family: str
    families: list[str]
    parameter_size: str
    quantization_level: str


class ListedModel(TypedDict):
    """size: bytes of its files; digest: 64 hexadecimal digits that name the model, and not a hash of its files."""

    name: str
    model: str
    modified_at: str
    size: int
    digest: str
    details: ModelDetails


class ModelTags(TypedDict):
    models: list[ListedModel]


class RunningModel(TypedDict):
    """size: bytes of memory that the model takes once its cache is full; size_vram: those of them on a GPU."""

    name: str
    model: str
    size: int
    digest: str
    details: ModelDetails
    expires_at: str
    size_vram: int
    context_length: int


class RunningModels(TypedDict):
    models: list[RunningModel]


class ShownModel(TypedDict):
    modelfile: str
    parameters: str
    template: str
    details: ModelDetails
    model_info: dict[str, Any]
    capabilities: list[str]
    modified_at: str


class OllamaVersion(TypedDict):
    """version: of Ollama, whose API this is; gander: the server's own."""

    version: str
    gander: str
