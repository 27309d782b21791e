"""The wire models of the completions API: what clients may send, and what they get.

Owns field names, types, bounds, and which OpenAI fields are refused because honouring them would change the
answer. Knows nothing of tokens. Types are strict: "5" is not a number. Replies are plain dictionaries with a
declared shape, because a stream makes one for every chunk.
"""

from __future__ import annotations

from typing import (
    Annotated,
    Any,
    Literal,
    NotRequired,  # pydantic wants these before Python 3.12
)

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, JsonValue, model_validator
from pydantic_core import PydanticCustomError
from typing_extensions import TypedDict

from server.errors import MAX_PARAM, shortened
from server.prompts import Prompt

INT64 = 2**63
MAX_STOP_LENGTH = 256

# OpenAI fields that would change the answer and are not honoured, with the values that mean "off".
REFUSED: dict[str, tuple[Any, ...]] = {
    "best_of": (),
    "logprobs": (),
    "suffix": ("",),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "logit_bias": ({},),
    "bad_words": ([],),
    "allowed_token_ids": (),
    "response_format": ({"type": "text"},),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "prediction": (),
    "prompt_logprobs": (),
    "use_beam_search": (False,),
    "logit_processors": ([],),
}
# Fields that mean nothing here and change no answer.
LENIENT = frozenset(
    {"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key"} | {"prompt_cache_retention"}
)


def refusal(code: str, message: str, field: str = "") -> PydanticCustomError:
    """An error with our own words. field: which one, where a whole model is refused for it."""
    return PydanticCustomError("gander", "{text}", {"code": code, "text": message, "field": field})


def _read_prompts(value: Any) -> list[Prompt]:
    """One prompt or several, as text or token ids, to a list of prompts."""
    expected = "a string, a list of strings, a list of token ids, or a list of lists of token ids"
    wrong = refusal("invalid_type", f"prompt must be {expected}.")
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list):
        raise wrong
    if not value:
        raise refusal("empty_prompt", "prompt is an empty list; it must have at least one token.")
    if all(type(item) is int for item in value):
        return [value]
    for item in value:
        is_ids = isinstance(item, list) and all(type(token_id) is int for token_id in item)
        if not isinstance(item, str) and not is_ids:
            raise wrong
    return value


def _read_stops(value: Any) -> list[str]:
    stops = [] if value is None else [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or not all(isinstance(stop, str) for stop in stops):
        raise refusal("invalid_type", "stop must be a string or a list of strings.")
    if not all(1 <= len(stop) <= MAX_STOP_LENGTH for stop in stops):
        raise refusal("invalid_value", f"Stop strings must have 1 to {MAX_STOP_LENGTH} characters.")
    return stops


PROMPT_SCHEMA: dict[str, JsonValue] = {
    "anyOf": [
        {"type": "string"},
        {"type": "array", "items": {"type": "string"}, "minItems": 1},
        {"type": "array", "items": {"type": "integer"}, "minItems": 1},
        {"type": "array", "items": {"type": "array", "items": {"type": "integer"}}, "minItems": 1},
    ]
}
STOP_SCHEMA: dict[str, JsonValue] = {
    "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}, {"type": "null"}]
}
Prompts = Annotated[list[Prompt], BeforeValidator(_read_prompts), Field(json_schema_extra=PROMPT_SCHEMA)]
Stops = Annotated[list[str], BeforeValidator(_read_stops), Field(json_schema_extra=STOP_SCHEMA)]


class WireModel(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _drop_defaults(cls, data: Any) -> Any:
        """null means "not given"; one unknown field is enough to stop at."""
        if not isinstance(data, dict):
            return data
        given = {name: value for name, value in data.items() if value is not None}
        for name in given:
            if name not in cls.model_fields and not cls._is_harmless(name, given[name], given):
                shown = shortened(name, MAX_PARAM)
                raise refusal("unknown_parameter", f"Unknown parameter: {shown}.", shown)
        return {name: value for name, value in given.items() if name in cls.model_fields}

    @classmethod
    def _is_harmless(cls, name: str, value: Any, given: dict[str, Any]) -> bool:  # noqa: ARG003
        return False


class StreamOptions(WireModel):
    include_usage: bool = False
    continuous_usage_stats: bool = False
    include_obfuscation: bool = False  # never done: replies carry no padding


class SpeculationOptions(WireModel):
    """How to draft; changes how fast the reply comes, never what it says."""

    method: str = Field(default="auto", max_length=64)
    max_nodes: int | None = Field(default=None, ge=1, le=65536, description="Largest draft tree, root not counted")
    max_depth: int | None = Field(default=None, ge=1, le=65536, description="Longest branch of the draft tree")
    without: list[Annotated[str, Field(max_length=64)]] = Field(default=[], max_length=16)
    branching: int = Field(default=3, ge=1, le=64)
    min_probability: float | None = Field(default=None, ge=0, lt=1)
    consensus: str = Field(default="occurrences", max_length=64)
    candidates: str | None = Field(default=None, max_length=64)
    verification: str = Field(default="match", max_length=64)
    report: bool = Field(default=False, description="Add a `speculation` object to every choice")


class CompletionRequest(WireModel):
    """POST /v1/completions. Fields beyond OpenAI's: from top_k on."""

    model: str | None = Field(default=None, description="The served model's name; may be left out")
    prompt: Prompts
    max_tokens: int | None = Field(default=None, ge=1, le=2**31, description="16 if absent")
    temperature: float = Field(default=1.0, ge=0, le=100)
    top_p: float = Field(default=1.0, ge=0, le=1)
    n: int = Field(default=1, ge=1)
    stop: Stops = []
    seed: int | None = Field(default=None, ge=-INT64, lt=2 * INT64)
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    echo: bool = False

    top_k: int = Field(default=0, ge=-1, lt=2**31, description="0 or -1: off")
    min_p: float = Field(default=0.0, ge=0, le=1)
    min_tokens: int = Field(default=0, ge=0, le=2**31)
    ignore_eos: bool = False
    stop_token_ids: list[int] = Field(default=[], max_length=256)
    session_id: str | None = Field(default=None, min_length=1, max_length=128)
    speculation: SpeculationOptions = SpeculationOptions()

    @classmethod
    def _is_harmless(cls, name: str, value: Any, given: dict[str, Any]) -> bool:
        if name in LENIENT:
            return True
        if name == "best_of" and type(value) is int and value == given.get("n", 1):
            return True
        if name not in REFUSED:
            return False
        if value in REFUSED[name] and not (isinstance(value, bool) and name != "use_beam_search"):
            return True
        raise refusal("unsupported_parameter", f"{name} is not supported yet; leave it out.", name)


class CompletionTokensDetails(TypedDict):
    accepted_prediction_tokens: int
    rejected_prediction_tokens: int
    reasoning_tokens: int


class Usage(TypedDict):
    """prompt_tokens counts every prompt once, whatever n is."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    completion_tokens_details: CompletionTokensDetails


class SpeculationReport(TypedDict):
    """What drafting did for one choice. method: the last one that drafted; choice, reason: why it did.

    acceptance_length: tokens per target forward, prefill apart.
    """

    method: str
    choice: str
    reason: str
    steps_by_method: dict[str, int]
    steps: int
    acceptance_length: float | None
    drafts: int
    drafted: int
    accepted: int
    drafted_by_source: dict[str, int]
    accepted_by_source: dict[str, int]
    accepted_by_depth: list[int]
    prefill_chunks: int
    queue_seconds: float
    time_to_first_token: float
    decode_seconds: float
    draft_model_seconds: float


class CompletionChoice(TypedDict):
    index: int
    text: str
    logprobs: None
    finish_reason: str | None
    speculation: NotRequired[SpeculationReport]


class Completion(TypedDict):
    """A whole reply, or one chunk of a streamed one."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[CompletionChoice]
    usage: NotRequired[Usage | None]


class ModelCard(TypedDict):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int | None


class ModelList(TypedDict):
    object: Literal["list"]
    data: list[ModelCard]


class ErrorDetail(TypedDict):
    message: str
    type: str
    param: str | None
    code: str


class ErrorReply(TypedDict):
    error: ErrorDetail
