"""Settings of who may call the server, under which names, and who is told of it."""

from __future__ import annotations

import re

from pydantic import BaseModel, Field, field_validator
from pydantic_core import PydanticCustomError

from server.http.heads.faults import as_compared
from server.http.heads.hosts import address_of
from server.http.keys import hashed

HOST_NAME = re.compile(r"\*|[0-9A-Za-z._-]+")


class AccessSettings(BaseModel):
    api_keys: str | None = Field(
        default=None, description="API keys, separated by commas, each as it is or as sha256:HEX; none: open to all"
    )
    api_key_file: str | None = Field(
        default=None, description="File of API keys, one a line, read again when it changes; 'admin KEY' is an admin's"
    )
    admin_keys: str | None = Field(default=None, description="API keys that also may see /metrics and all sessions")
    open_metrics: bool = Field(default=False, description="Serve /metrics without a key where there are API keys")
    otlp_endpoint: str | None = Field(
        default=None,
        description="Address to which an OpenTelemetry collector wants the spans of requests, such as "
        "http://127.0.0.1:4318/v1/traces; needs the extra otel",
    )
    allowed_hosts: str | None = Field(
        default=None,
        description="Names, separated by commas, to which the server answers beside localhost and the machine's own; "
        "* for all. By default it is all of them with API keys or on --host 0.0.0.0, else none",
    )
    ollama_api: bool = Field(
        default=True, description="Serve Ollama's API below /api/, beside OpenAI's and Anthropic's"
    )
    cors_origins: str | None = Field(
        default=None, description="Web origins that may call this server, separated by commas; * for all"
    )

    @field_validator("api_keys", "admin_keys")
    @classmethod
    def _hash_keys(cls, keys: str | None) -> str | None:
        """Hash the keys, because settings are shown and logged. An empty list is an error: it would open the server."""
        if keys is None:
            return None
        try:
            named = [hashed(key.strip()) for key in keys.split(",") if key.strip()]
        except ValueError as error:
            raise PydanticCustomError("keys", "{text}.", {"text": str(error)}) from None
        if not named:
            raise PydanticCustomError("keys", "this is empty, and no key can be meant by it: give keys, or unset it.")
        return ",".join(named)

    @field_validator("allowed_hosts")
    @classmethod
    def _check_hosts(cls, hosts: str | None) -> str | None:
        for name in () if hosts is None else hosts.split(","):
            if not HOST_NAME.fullmatch(name.strip()) and address_of(as_compared(name.strip())) is None:
                text = f"'{name.strip()}' is no host's name: names have neither a scheme nor a port; * stands for all."
                raise PydanticCustomError("hosts", "{text}", {"text": text})
        return hosts

    @property
    def allowed_host_names(self) -> frozenset[str]:
        """The names of `allowed_hosts` as they are compared."""
        given = (as_compared(name.strip()) for name in (self.allowed_hosts or "").split(","))
        return frozenset(given) - {""}
