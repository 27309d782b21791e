"""Fields that constrain a reply's format: OpenAI's response_format, vLLM's structured_outputs and guided_*.

`server.grammars` turns them into a grammar.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from server.schemas.base import WireModel, refusal

JsonObject = dict[str, Any]  # an object whose content pydantic does not validate


def _read_schema(value: Any) -> Any:
    if not isinstance(value, str | dict):
        raise refusal("invalid_type", "A JSON schema must be an object, or its text.")
    return value


SchemaOrText = Annotated[
    JsonObject | str,
    BeforeValidator(_read_schema),
    WithJsonSchema({"anyOf": [{"type": "object"}, {"type": "string"}]}),
]
Choices = Annotated[list[str], Field(min_length=1, max_length=1024)]


class NamedSchema(WireModel):
    """A JSON schema. strict: it is refused where a grammar cannot enforce all of it; else what can be is enforced."""

    lenient: ClassVar[frozenset[str]] = frozenset({"name", "description"})

    strict: bool = False

    definition: JsonObject = Field(alias="schema")


class ResponseFormat(WireModel):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: NamedSchema | None = None

    @model_validator(mode="after")
    def _require_schema(self) -> ResponseFormat:
        if (self.type == "json_schema") != (self.json_schema is not None):
            message = "json_schema is required with type json_schema, and with no other."
            raise refusal("invalid_value", message, "json_schema")
        return self


class StructuredOutputs(WireModel):
    """vLLM's constraints, of which a request may give one."""

    definition: SchemaOrText | None = Field(default=None, alias="json")
    json_object: bool = False
    regex: str | None = None
    choice: Choices | None = None
    grammar: str | None = Field(default=None, description="A Lark grammar, in llguidance's dialect")
