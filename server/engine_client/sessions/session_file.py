"""A session as bytes that can be kept in a file or sent to another server: what it holds, and of which model.

Knows nothing of folders. The invariant: bytes are read as they were written, for the place that they were written for,
by the same version and for the same model, or they are refused. No name of a key or session is in them.
"""

from __future__ import annotations

import hashlib

import msgspec

from decoding.core.session_info import SessionState

MARK = b"gander session 9\n"  # the number changes with the format, and with the meaning of what is in it
MARK_OF_8 = b"gander session 8\n"
MODELS = ("greedy", "sampled")
NO_PLACE = ""  # of a session on its way to another server
DIGEST_BYTES = hashlib.sha256().digest_size


class _Content(msgspec.Struct, frozen=True):
    """model: its identity. stores: as in `SessionState`."""

    model: str
    stores: dict[str, list[bytes]]


def seal(state: SessionState, model: str, place: str = NO_PLACE) -> bytes:
    """place: the name that only these bytes may have."""
    content = msgspec.msgpack.encode(_Content(model, state.stores))
    return MARK + _digest(content, place) + content


def unseal(data: bytes, model: str, tenant: str, session_id: str, place: str = NO_PLACE) -> SessionState:
    """The session, by these names. Raises ValueError that says what is wrong, in a clause."""
    if not data.startswith((MARK, MARK_OF_8)):
        raise ValueError("it is not a session, or one of another version")
    digest, body = data[len(MARK) : len(MARK) + DIGEST_BYTES], data[len(MARK) + DIGEST_BYTES :]
    if digest != _digest(body, place):
        raise ValueError("it was cut short or changed, or is another's")
    content = msgspec.msgpack.decode(body, type=_Content)  # a MsgspecError is a ValueError
    if content.model != model:
        raise ValueError("it is of another model")
    stores = content.stores if data.startswith(MARK) else _from_form_8(content.stores)
    return SessionState(tenant, session_id, stores)


def _from_form_8(stores: dict[str, list[bytes]]) -> dict[str, list[bytes]]:
    """Form 8 ended an acceptance model with float32 [5], of which the second and the fifth are `asked_rate`, and
    float32 [16], which is gone."""
    found = dict(stores)
    for name in MODELS:
        if name in stores:
            *same, probes, _ = stores[name]
            found[name] = [*same, probes[4:8] + probes[16:20]]
    return found


def _digest(content: bytes, place: str) -> bytes:
    return hashlib.sha256(place.encode() + b"\0" + content).digest()
