"""A session as bytes that can be kept in a file or sent to another server: what it holds, and of which model.

Knows nothing of folders, nor of what is in a session: the worker reads that, and refuses what no session holds. The
invariant: bytes are read as they were written, for the place that they were written for, by the same version, for the
same model and with the same key, or they are refused. No name of a key or session is in them.
"""

from __future__ import annotations

import hashlib
import hmac
from pathlib import Path

import msgspec

from decoding.core.session_info import SessionState
from decoding.errors import ConfigError

HEADER = b"gander session "  # with which every version begins
MARK = HEADER + b"11\n"  # the number changes with the format, and with the meaning of what is in it
SIGNED_MARK = HEADER + b"11 signed\n"  # the digest behind it is an HMAC with the operator's key
OLDER_MARKS = (  # their acceptance models are other numbers
    *(HEADER + b"8\n", HEADER + b"9\n", HEADER + b"9 signed\n"),
    *(HEADER + b"10\n", HEADER + b"10 signed\n"),
)
MODELS = ("greedy", "sampled")
NO_PLACE = ""  # of a session on its way to another server
NO_KEY = b""
LEAST_KEY_BYTES = 16
DIGEST_BYTES = hashlib.sha256().digest_size


class _Content(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """model: its identity. stores: as in `SessionState`."""

    model: str
    stores: dict[str, list[bytes]]


def read_key(path: str) -> bytes:
    """The key of `--sessions-key`: all of a file but white space at its ends. Raises ConfigError."""
    try:
        key = Path(path).read_bytes().strip()
    except OSError as error:
        raise ConfigError(f"the key of sessions {path} cannot be read: {error.strerror}") from None
    if len(key) < LEAST_KEY_BYTES:
        raise ConfigError(f"the key of sessions {path} has {len(key)} bytes, and {LEAST_KEY_BYTES} is the least")
    return key


def seal(state: SessionState, model: str, place: str = NO_PLACE, key: bytes = NO_KEY) -> bytes:
    """place: the name that only these bytes may have. key: of the operator; without one they are not signed."""
    content = msgspec.msgpack.encode(_Content(model, state.stores))
    return (SIGNED_MARK if key else MARK) + _digest(content, place, key) + content


def unseal(
    data: bytes, model: str, tenant: str, session_id: str, place: str = NO_PLACE, key: bytes = NO_KEY
) -> SessionState:
    """The session, by these names. Raises ValueError that says what is wrong, in a clause."""
    mark = next((mark for mark in (SIGNED_MARK, MARK, *OLDER_MARKS) if data.startswith(mark)), None)
    if mark is None:
        raise ValueError("it is not a session, or one of another version")
    is_signed = mark.endswith(b"signed\n")
    if key and not is_signed:
        raise ValueError("it is not signed with the key of --sessions-key")
    if is_signed and not key:
        raise ValueError("it is signed with a key, and there is no --sessions-key")
    digest, body = data[len(mark) : len(mark) + DIGEST_BYTES], data[len(mark) + DIGEST_BYTES :]
    if not hmac.compare_digest(digest, _digest(body, place, key)):
        raise ValueError(f"it was cut short or changed, {'has another key, ' if key else ''}or is another's")
    content = msgspec.msgpack.decode(body, type=_Content)  # a MsgspecError is a ValueError
    if content.model != model:
        raise ValueError("it is of another model")
    stores = {name: held for name, held in content.stores.items() if mark not in OLDER_MARKS or name not in MODELS}
    return SessionState(tenant, session_id, stores)


def _digest(content: bytes, place: str, key: bytes) -> bytes:
    message = place.encode() + b"\0" + content
    return hmac.digest(key, message, "sha256") if key else hashlib.sha256(message).digest()
