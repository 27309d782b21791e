"""A session's bytes are read as they were written, also those of the format before this one, or refused."""

from __future__ import annotations

import hashlib
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import numpy as np
import pytest

from decoding.core.session_info import SessionState
from decoding.errors import ConfigError
from decoding.stores.session import Session
from decoding.stores.session_store import SessionLimits, SessionStore
from server.engine_client.sessions.session_file import MARK, OLDER_MARKS, SIGNED_MARK, read_key, seal, unseal

VOCABULARY = 1000
MODEL, PLACE = "a model", "a place"


def store() -> SessionStore:
    return SessionStore(SessionLimits(2**18, 2**24, 2**24))


def taught_session() -> Session:
    session = store().open("alice", "chat")
    session.replies.extend(np.arange(40, dtype=np.int32), -1)
    session.ngrams.harvest(
        np.arange(4, dtype=np.int32)[None], np.arange(10, dtype=np.int32)[None], np.full((1, 10), 0.05, np.float32)
    )
    greedy, _ = session.acceptance_models(False)
    greedy.asked_rate[:] = 0.75, 31.0
    greedy.hit_rate[:] = 0.5, 20.0
    return session


def of_form_9(state: SessionState) -> bytes:
    """As a server of version 9 wrote it: without the last two arrays of an acceptance model."""
    models = {name: held[:-2] for name, held in state.stores.items() if name in ("greedy", "sampled")}
    content = msgspec.msgpack.encode({"model": MODEL, "stores": dict(state.stores) | models})
    return b"gander session 9\n" + hashlib.sha256(PLACE.encode() + b"\0" + content).digest() + content


def test_a_session_is_read_as_it_was_written() -> None:
    state = taught_session().state()
    assert unseal(seal(state, MODEL, PLACE), MODEL, "alice", "chat", PLACE) == state


def test_a_session_of_the_format_before_is_read_but_for_what_its_chances_were_worth() -> None:
    session = taught_session()
    state = unseal(of_form_9(session.state()), MODEL, "alice", "chat", PLACE)
    restored = store()
    restored.restore(state, VOCABULARY)
    assert state.stores.keys() == {"ngrams", "replies"}
    assert restored.open("alice", "chat").state().stores.items() >= state.stores.items()
    assert state.stores.items() <= session.state().stores.items()


@pytest.mark.parametrize("written", ["now", "before"])
def test_what_was_changed_moved_or_is_of_another_model_or_version_is_refused(written: str) -> None:
    state = taught_session().state()
    whole = seal(state, MODEL, PLACE) if written == "now" else of_form_9(state)
    assert unseal(whole, MODEL, "alice", "chat", PLACE).stores.keys() >= {"ngrams", "replies"}
    for data, model, place in (
        (whole[:-1], MODEL, PLACE),
        (whole[:-1] + bytes([whole[-1] ^ 1]), MODEL, PLACE),
        (whole, MODEL, "elsewhere"),
        (whole, "another model", PLACE),
        (b"gander session 7\n" + whole[17:], MODEL, PLACE),
    ):
        with pytest.raises(ValueError, match=r"^it (is|was) "):
            unseal(data, model, "alice", "chat", place)


def with_digest(mark: bytes, content: bytes) -> bytes:
    return mark + hashlib.sha256(PLACE.encode() + b"\0" + content).digest() + content


def strange(random: Random, depth: int = 0) -> Any:
    """Something that msgpack can say, of names that a session has and of others."""
    kinds = ["text", "bytes", "number", *(["list", "dictionary", "deep"] if depth < 4 else [])]
    match random.choice(kinds):
        case "text":
            return random.choice((MODEL, "", "ngrams", "\0", "x" * 1000))
        case "bytes":
            return random.randbytes(random.choice((0, 1, 40)))
        case "number":
            return random.choice((0, -1, 2**63, 1.5, float("nan"), None, True))
        case "list":
            return [strange(random, depth + 1) for _ in range(random.randrange(4))]
        case "deep":
            return msgspec.Raw(b"\x91" * 5000 + b"\x90")
        case _:
            names = random.sample(("model", "stores", "ngrams", "replies", "greedy", "sampled", "else"), 4)
            return {name: strange(random, depth + 1) for name in names}


def test_whatever_is_in_bytes_with_a_right_digest_is_a_session_for_the_worker_to_judge_or_refused() -> None:
    random, num_sessions, whole = Random(1), 0, seal(taught_session().state(), MODEL, PLACE)
    for number in range(3000):
        mark = random.choice((MARK, OLDER_MARKS[0]))
        content: Any = {"model": MODEL, "stores": strange(random)} if number % 2 else strange(random)
        if number % 5 == 0:
            content = {"model": MODEL, "stores": {"greedy": [b""] * random.randrange(4), "replies": []}}
        encoded = msgspec.msgpack.encode(content)
        if number % 7 == 0:
            place = random.randrange(len(encoded))
            encoded = encoded[:place] + random.randbytes(1) + encoded[place + random.randrange(2) :]
        for data in (with_digest(mark, encoded), encoded, whole[: random.randrange(len(whole))], mark + encoded[:20]):
            try:
                state = unseal(data, MODEL, "alice", "chat", PLACE)
            except ValueError:
                continue
            num_sessions += 1
            assert all(isinstance(array, bytes) for arrays in state.stores.values() for array in arrays)
    assert num_sessions > 100


def test_a_signature_is_of_the_content_and_of_its_place() -> None:
    state, key = taught_session().state(), b"k" * 32
    signed = seal(state, MODEL, PLACE, key)
    assert signed.startswith(SIGNED_MARK)
    assert unseal(signed, MODEL, "alice", "chat", PLACE, key) == state
    forged = with_digest(SIGNED_MARK, signed[len(SIGNED_MARK) + 32 :])
    for data, place, with_key in (
        (signed[:-1] + bytes([signed[-1] ^ 1]), PLACE, key),
        (signed, "elsewhere", key),
        (signed, PLACE, b"l" * 32),
        (forged, PLACE, key),
        (forged, PLACE, b""),
        (seal(state, MODEL, PLACE), PLACE, key),
        (of_form_9(state), PLACE, key),
    ):
        with pytest.raises(ValueError, match=r"^it (is|was) "):
            unseal(data, MODEL, "alice", "chat", place, with_key)


def test_a_key_is_read_from_a_file_without_the_white_space_around_it(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_bytes(b"  0123456789abcdef\n")
    assert read_key(str(path)) == b"0123456789abcdef"
    path.write_bytes(b"0123456789abcde\n")
    with pytest.raises(ConfigError, match="has 15 bytes, and 16 is the least"):
        read_key(str(path))
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        read_key(str(tmp_path / "none"))
