"""Thoughts as text that clients do not read and send back: the signature of a thinking block, the encrypted content of
a reasoning item. Pure.

It keeps no secret: it is how a thought comes back whose text the client was not given, or did not keep.
"""

from __future__ import annotations

from base64 import b64decode, b64encode

OURS = "thought:"


def signature_of(thought: str) -> str:
    return OURS + b64encode(thought.encode()).decode()


def thought_in(signature: str) -> str:
    """The thought; empty where the signature holds none, such as another server's."""
    if not signature.startswith(OURS):
        return ""
    try:
        return b64decode(signature.removeprefix(OURS), validate=True).decode()
    except ValueError:
        return ""
