"""Settings of the port: where it is, the model's names there, and how many connections and bytes it takes."""

from __future__ import annotations

from pydantic import BaseModel, Field


class PortSettings(BaseModel):
    host: str = Field(default="127.0.0.1", description="Address to listen on")
    port: int = Field(default=8000, ge=0, le=65535, description="Port to listen on; 0 picks a free one")
    served_model_name: str | None = Field(
        default=None,
        description="Names clients may use, separated by commas, * standing for any text; by default the model's own",
    )
    max_body_bytes: int = Field(default=4 * 2**20, ge=1024, description="Largest request body, in bytes")
    max_connections: int = Field(
        default=4096, ge=2, description="Most open connections; fewer where the limit on file descriptors is lower"
    )
    max_connections_per_address: int | None = Field(
        default=None, ge=1, description="Most open connections of one client address; by default half of all"
    )
    max_head_bytes: int = Field(
        default=32768, ge=1024, description="Largest head of a request (its path and headers), in bytes"
    )
    head_seconds: float = Field(default=10.0, gt=0, description="Seconds within which a request's head must arrive")
    body_seconds: float = Field(default=60.0, gt=0, description="Seconds within which a request's body must arrive")
    max_body_parts: int = Field(
        default=65536, ge=1, description="Most objects, lists and object members in the JSON of one request body"
    )
