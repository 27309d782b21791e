"""The fields that all generating endpoints share: sampling, stopping, constraints and drafting.

Owns their names, types and bounds, and the fields that are refused because they would change the answer and are not
supported. `server.generation.limits` checks the bounds that the server's settings set.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field, JsonValue, WithJsonSchema, field_validator

from server.http.errors import MAX_PARAM, shortened
from server.schemas.base import INT64, WireModel, refusal
from server.schemas.structured import Choices, ResponseFormat, SchemaOrText, StructuredOutputs

MAX_STOP_LENGTH = 256  # characters, also of a bad word
MAX_LENGTH = 2**31
MAX_TOKEN_IDS = 2**19  # in a list, more than any vocabulary has

# Fields that are accepted and change nothing.
LENIENT = frozenset(
    {
        "user",
        "metadata",
        "client_metadata",
        "store",
        "service_tier",
        "safety_identifier",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
    }
)
# Fields that would change the answer and are not supported, with their values that mean "off", which are accepted.
REFUSED: dict[str, tuple[Any, ...]] = {
    # vllm-router adds these to every request.
    "no_stop_trim": (False,),
    "separate_reasoning": (True,),
    "stream_reasoning": (True,),
    "include_reasoning": (True,),
    "return_hidden_states": (False,),
    "use_beam_search": (False,),
    "logit_processors": ([],),
    "logits_processors": ([],),
    "spaces_between_special_tokens": (True,),
    "length_penalty": (1,),
    "early_stopping": (False,),
}
EXPLAINED = {"use_beam_search": "this server samples; ask for n choices, or for the n likeliest of best_of"}

TextParts: JsonValue = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
        "required": ["type", "text"],
    },
}
TEXT_SCHEMA: dict[str, JsonValue] = {"anyOf": [{"type": "string"}, TextParts]}
TEXT_TYPES = frozenset({"text", "input_text", "output_text", "reasoning_text", "refusal"})


def read_text(value: Any) -> Any:
    """Read text, or a list of text parts, which are joined by newlines; a part of type refusal is text as well. Other
    values are left to the field's check."""
    if not isinstance(value, list):
        return value
    texts = []
    for part in value:
        if not isinstance(part, dict) or not isinstance(part.get("type"), str):
            raise refusal("invalid_type", "content must be a string or a list of parts of type text.")
        if part["type"] not in TEXT_TYPES:
            message = "Content parts must be of type text, or of image_url in a message to a model that sees."
            raise refusal("unsupported_content", message)
        name = "refusal" if part["type"] == "refusal" else "text"
        if not isinstance(part.get(name), str):
            raise refusal("invalid_type", f"A content part of type {name} must have a {name}.")
        texts.append(part[name])
    return "\n".join(texts)


def _read_stops(value: Any) -> list[str]:
    stops = [] if value is None else [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or not all(isinstance(stop, str) for stop in stops):
        raise refusal("invalid_type", "Stop strings must be a string or a list of strings.")
    if not all(1 <= len(stop) <= MAX_STOP_LENGTH for stop in stops):
        raise refusal("invalid_value", f"Stop strings must have 1 to {MAX_STOP_LENGTH} characters.")
    return stops


def _read_bias(value: Any) -> dict[int, float]:
    """Read a map from token ids, which are strings because JSON has no integer keys, to biases."""
    if not isinstance(value, dict):
        raise refusal("invalid_type", "logit_bias must map token ids to numbers from -100 to 100.")
    biases = {}
    for name, bias in value.items():
        shown = shortened(str(name), MAX_PARAM)
        if not (isinstance(name, str) and name.isascii() and name.isdecimal() and len(name) <= 10):
            raise refusal("invalid_type", f"logit_bias: '{shown}' is no token id.", shown)
        if isinstance(bias, bool) or not isinstance(bias, int | float):
            raise refusal("invalid_type", f"logit_bias: the bias of token {name} is not a number.", shown)
        if not -100 <= bias <= 100:
            raise refusal("invalid_value", f"logit_bias: the bias of token {name} is not from -100 to 100.", shown)
        biases[int(name)] = float(bias)
    return biases


def _distinct(ids: list[int]) -> list[int]:
    return sorted(set(ids))


def _check_trace(value: Any) -> Any:
    if not isinstance(value, bool) and value != "trees":
        raise refusal("invalid_value", 'speculation.trace must be true, false or "trees".')
    return value


STOP_SCHEMA: dict[str, JsonValue] = {
    "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}, {"type": "null"}]
}
BIAS_SCHEMA: dict[str, JsonValue] = {
    "type": "object",
    "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100},
    "propertyNames": {"pattern": "^[0-9]{1,10}$"},
}
Stops = Annotated[list[str], BeforeValidator(_read_stops), WithJsonSchema(STOP_SCHEMA)]
LogitBias = Annotated[dict[int, float], BeforeValidator(_read_bias), WithJsonSchema(BIAS_SCHEMA)]
StopIds = Annotated[list[int], Field(max_length=256), AfterValidator(_distinct)]
TokenIds = Annotated[
    list[int], Field(min_length=1, max_length=MAX_TOKEN_IDS, fail_fast=True), AfterValidator(_distinct)
]
BadWords = Annotated[list[Annotated[str, Field(min_length=1, max_length=MAX_STOP_LENGTH)]], Field(fail_fast=True)]
Text = Annotated[str, BeforeValidator(read_text), WithJsonSchema(TEXT_SCHEMA)]


class StreamOptions(WireModel):
    """Options of a streamed reply; a plain reply ignores them."""

    include_usage: bool = False
    continuous_usage_stats: bool = False
    include_obfuscation: bool = False  # has no effect: events get no padding fields


class SpeculationOptions(WireModel):
    """How to draft. This changes how fast the reply comes, and never what it says."""

    method: str = Field(default="auto", max_length=64)
    max_nodes: int | None = Field(default=None, ge=1, le=65536, description="Largest draft tree, root not counted")
    max_depth: int | None = Field(default=None, ge=1, le=65536, description="Longest branch of the draft tree")
    without: list[Annotated[str, Field(max_length=64)]] = Field(default=[], max_length=16)
    sources: list[Annotated[str, Field(max_length=64)]] | None = Field(
        default=None, max_length=16, description="Sources that may draft; null for all that the method has"
    )
    branching: int = Field(default=3, ge=1, le=64)
    min_probability: float | None = Field(default=None, ge=0, lt=1)
    consensus: str = Field(default="occurrences", max_length=64)
    candidates: str | None = Field(default=None, max_length=64)
    verification: str = Field(default="match", max_length=64)
    report: bool = Field(default=False, description="Add a `speculation` object to every choice")
    trace: Annotated[bool | Literal["trees"], BeforeValidator(_check_trace)] = Field(
        default=False,
        description="Add a `trace` object to every chunk: the source of each token; `trees`: also the draft trees",
    )


class Prediction(WireModel):
    """OpenAI's predicted output: text that the reply probably contains. It is used for drafting only."""

    type: Literal["content"]
    content: Text


class SamplingRequest(WireModel):
    """The fields that all bodies share. Those from top_k on are beyond OpenAI's."""

    lenient: ClassVar[frozenset[str]] = LENIENT
    refused: ClassVar[dict[str, tuple[Any, ...]]] = REFUSED
    explained: ClassVar[dict[str, str]] = EXPLAINED

    model: str | None = Field(default=None, description="The served model's name; may be left out")
    temperature: float = Field(default=1.0, ge=0, le=100)
    top_p: float = Field(default=1.0, ge=0, le=1)
    stop: Stops = Field(default=[])
    seed: int | None = Field(default=None, ge=-INT64, lt=2 * INT64)
    presence_penalty: float = Field(default=0.0, ge=-2, le=2)
    frequency_penalty: float = Field(default=0.0, ge=-2, le=2)
    logit_bias: LogitBias = Field(default={})
    prediction: Prediction | None = None
    stream: bool = False

    top_k: int = Field(default=0, ge=-1, lt=2**31, description="0 or -1: off")
    min_p: float = Field(default=0.0, ge=0, le=1)
    repetition_penalty: float = Field(
        default=1.0, ge=0.01, le=100, description="1: off; prompt tokens count as repeated"
    )
    min_tokens: int = Field(default=0, ge=0, le=MAX_LENGTH)
    ignore_eos: bool = False
    include_stop_str_in_output: bool = Field(default=False, description="Leave the stop string or token in the text")
    skip_special_tokens: bool = Field(default=True, description="Leave special tokens out of the text")
    stop_token_ids: StopIds = Field(default=[])
    bad_words: BadWords = Field(default=[], description="Words that the reply must not contain")
    allowed_token_ids: TokenIds | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: SchemaOrText | None = None
    guided_regex: str | None = None
    guided_choice: Choices | None = None
    guided_grammar: str | None = None
    session_id: str | None = Field(default=None, min_length=1, max_length=128)
    cache_salt: str | None = Field(
        default=None,
        min_length=1,
        max_length=256,
        description="Share cached prompt prefixes only with requests of the same salt",
    )
    priority: int = Field(
        default=0, ge=-(2**31), lt=2**31, description="A lower number goes first; only admin keys may give one but 0"
    )
    timeout: float | None = Field(
        default=None,
        gt=0,
        allow_inf_nan=False,
        description="Seconds that the whole reply may take; after them it ends with 504, or an error event in a stream",
    )
    keep_alive: float | None = Field(
        default=None,
        allow_inf_nan=False,
        description="Seconds that the model stays loaded after this request; 0: not at all, a negative number: until "
        "another model needs its room",
    )
    speculation: SpeculationOptions = SpeculationOptions()


class GenerationRequest(SamplingRequest):
    """The fields that only completions and chat completions share."""

    n: int = Field(default=1, ge=1)
    response_format: ResponseFormat | None = None
    prompt_logprobs: int | None = Field(
        default=None, ge=0, description="How many of the likeliest tokens to report per prompt token"
    )
    stream_options: StreamOptions = StreamOptions()
    return_progress: bool = Field(
        default=False, description="Tell in `prompt_progress` chunks of a stream how far a long prompt is"
    )
    truncate_prompt_tokens: int | None = Field(
        default=None,
        ge=-1,
        description="Keep only so many of the prompt's last tokens; -1: as many as leave room for the reply",
    )
    return_token_ids: bool = Field(default=False, description="Return the token ids of prompt and reply too")
    return_tokens_as_token_ids: bool = Field(default=False, description="Log probabilities name tokens as token_id:ID")

    @field_validator("truncate_prompt_tokens")
    @classmethod
    def _require_some(cls, most: int | None) -> int | None:
        if most == 0:
            raise refusal("invalid_value", "truncate_prompt_tokens must be 1 at least, or -1.")
        return most
