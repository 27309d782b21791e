"""A grammar a reply must follow, as the caller wrote it. Pure data; `decoding/sampling/grammar/` compiles it."""

from __future__ import annotations

from typing import Literal

import msgspec


class Grammar(msgspec.Struct, frozen=True):
    """kind says how to read `text`.

    json_object: any JSON object, text is ignored; json_schema: a JSON schema; regex: Rust syntax, matched whole;
    choice: a JSON array of strings, one of which is the reply; lark: a grammar in llguidance's dialect of Lark.
    """

    kind: Literal["json_object", "json_schema", "regex", "choice", "lark"]
    text: str
