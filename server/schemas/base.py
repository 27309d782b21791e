"""The base of all wire models: strict types ("5" is not a number), null for "not given", and our own error messages.

Only requests are such models. Replies are typed dictionaries, which cost less: a stream makes one for every chunk.
"""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, GetJsonSchemaHandler, model_validator
from pydantic_core import CoreSchema, PydanticCustomError

from server.http.errors import MAX_PARAM, shortened
from server.http.notices import UNKNOWN_FIELDS, tell

INT64 = 2**63


def refusal(code: str, message: str, field: str = "") -> PydanticCustomError:
    """An error with our own message. field: the field at fault, where a validator refuses a whole model for it."""
    return PydanticCustomError("gander", "{text}", {"code": code, "text": message, "field": field})


class OrText:
    """Adds plain text to the forms that the OpenAPI document shows for a field."""

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"anyOf": [{"type": "string"}, handler(schema)]}


class WireModel(BaseModel):
    """A request's body. lenient: fields that are accepted and change nothing. refused: fields that this server does not
    support, with their values that mean "off", which are accepted.

    explained: for some of the refused fields, what to do instead.
    """

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, frozen=True)
    lenient: ClassVar[frozenset[str]] = frozenset()
    refused: ClassVar[dict[str, tuple[Any, ...]]] = {}
    explained: ClassVar[dict[str, str]] = {}

    @model_validator(mode="before")
    @classmethod
    def _drop_defaults(cls, data: Any) -> Any:
        """Drop nulls and lenient fields. Raises at the first refused field, and at the first unknown one where the
        server takes it for an error."""
        if not isinstance(data, dict):
            return data
        names = {field.alias or name for name, field in cls.model_fields.items()}
        given = {name: value for name, value in data.items() if value is not None}
        for name, value in given.items():
            if name not in names and name not in cls.lenient:
                cls._require_off(name, value)
        return {name: value for name, value in given.items() if name in names}

    @classmethod
    def _require_off(cls, name: str, value: Any) -> None:
        if name not in cls.refused:
            shown, policy = shortened(name, MAX_PARAM), UNKNOWN_FIELDS.get()
            if policy == "error":
                raise refusal("unknown_parameter", f"Unknown parameter: {shown}.", shown)
            if policy == "warn":
                tell(f"The unknown field {shown!a} is ignored.")
            return
        if not any(value == off and isinstance(value, bool) == isinstance(off, bool) for off in cls.refused[name]):
            reason = cls.explained.get(name, "leave it out")
            raise refusal("unsupported_parameter", f"{name} is not supported; {reason}.", name)
