"""The API keys of a server. Only the SHA-256 of a key is kept, and hashes are compared in constant time.

A file of keys is read again when it has changed and been still for a moment, and when that is asked for. Invariant:
what another process has written of a key so far is no key. Knows nothing of HTTP.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import math
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from decoding.errors import ConfigError

LOG = logging.getLogger("gander.keys")
HASH_PREFIX = "sha256:"
HASHED = re.compile(r"sha256:([0-9a-fA-F]{64})")
ADMIN = "admin"  # the word before an admin's key
TENANT_LENGTH = 32  # hexadecimal digits of a key's hash that identify its owner
VALID_TENANT = re.compile(rf"([0-9a-f]{{{TENANT_LENGTH}}})?")
LABEL_LENGTH = 8  # the first of those digits, which logs show
STILL_SECONDS = 0.5  # a file that was written to later than that may not be whole
UNENDED_SECONDS = 5.0  # the same where its last line is not ended: the rest of a key may be missing


@dataclass(frozen=True, slots=True)
class KeyTerms:
    """The limits of one key; None is no limit. weight: its share of a busy server, relative to other keys' weights."""

    weight: float = 1.0
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None

    @classmethod
    def read(cls, words: Iterable[str]) -> KeyTerms:
        """Read words of the form NAME=NUMBER. The ValueError never quotes an unknown word: it may be part of a key."""
        given: dict[str, float] = {}
        for word in words:
            name, _, text = word.partition("=")
            if name not in cls.__dataclass_fields__ or name in given:
                raise ValueError(f"behind a key come {', '.join(cls.__dataclass_fields__)}, as NAME=NUMBER, each once")
            try:
                given[name] = number = float(text) if name == "weight" else int(text)
            except ValueError:
                number = 0
            if not 0 < number < math.inf:
                kind = "number" if name == "weight" else "whole number"
                raise ValueError(f"{name} must be a {kind} above 0, and {text} is not")
        return cls(**given)  # type: ignore[arg-type]


NO_TERMS = KeyTerms()


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sent a request. tenant: the first digits of the key's hash, "" without a key. Without any keys on the server
    everybody is an admin."""

    tenant: str = ""
    is_admin: bool = True
    terms: KeyTerms = NO_TERMS

    @property
    def is_known(self) -> bool:
        return self.is_admin or self.tenant != ""

    @property
    def label(self) -> str:
        """The key's name in logs: the first digits of its SHA-256, as `sha256sum` prints them."""
        return self.tenant[:LABEL_LENGTH]


@dataclass(frozen=True, slots=True)
class StoredKey:
    digest: bytes
    is_admin: bool
    terms: KeyTerms = NO_TERMS

    @classmethod
    def read(cls, text: str, is_admin: bool, terms: KeyTerms = NO_TERMS) -> StoredKey:
        """Read a key as it is, or its hash as sha256:HEX."""
        return cls(bytes.fromhex(hashed(text).removeprefix(HASH_PREFIX)), is_admin, terms)


def hashed(key: str) -> str:
    """A key's hash as sha256:HEX; what already has that form stays as it is. Raises ValueError for a hash that is not
    whole."""
    if key.startswith(HASH_PREFIX) and not is_hashed(key):
        raise ValueError(f"a hash is {HASH_PREFIX} and 64 hexadecimal digits")
    return key if is_hashed(key) else HASH_PREFIX + hashlib.sha256(key.encode()).hexdigest()


def is_hashed(key: str) -> bool:
    return HASHED.fullmatch(key) is not None


class KeyRing:
    """All keys of the server. The file is read now, and again when its time or size has changed; until it can be, and
    while it may still be being written, the old keys hold. keys, admin_keys: separated by commas. now: in seconds since
    1970, as files have it."""

    def __init__(
        self, keys: str | None, admin_keys: str | None, file: str | None, now: Callable[[], float] = time.time
    ) -> None:
        """Raises ConfigError where the file cannot be read now."""
        self._now = now
        self._fixed = [*_listed(keys, is_admin=False), *_listed(admin_keys, is_admin=True)]
        self._path = None if file is None else Path(file)
        self._stamp: tuple[int, int] | None = None
        self._from_file: list[StoredKey] = []
        if self._path is not None:
            try:
                self._read(self._path, is_asked=True)
            except (OSError, ValueError) as error:
                raise ConfigError(f"the API key file {file} cannot be read: {error}") from None

    @property
    def is_open(self) -> bool:
        """Whether no keys were configured, so that everybody is let in."""
        return not self._fixed and self._path is None

    def find(self, key: str) -> Caller | None:
        """The caller with this key, or None. Every stored key is compared, so that the time taken reveals nothing."""
        self._refresh()
        digest = hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
        is_known = is_admin = False
        terms = NO_TERMS
        for stored in (*self._fixed, *self._from_file):
            is_equal = hmac.compare_digest(stored.digest, digest)
            is_known |= is_equal
            is_admin |= is_equal and stored.is_admin
            terms = stored.terms if is_equal else terms
        return Caller(digest.hex()[:TENANT_LENGTH], is_admin, terms) if is_known else None

    def reload(self) -> None:
        """Read the file again, also where it seems unchanged or has just been changed. Raises ConfigError where it
        cannot be read; the keys of before then hold."""
        if self._path is None:
            LOG.info("There is no file of API keys to be read again.")
            return
        self._stamp = None
        if (fault := self._refresh(is_asked=True)) is not None:
            raise ConfigError(f"the API key file cannot be read: {fault}")

    def _refresh(self, is_asked: bool = False) -> str | None:
        """Read the file if it has changed. Returns why the keys read before still hold, where it cannot be read."""
        try:
            if self._path is not None and self._stamp != _stamp(self._path) and self._read(self._path, is_asked):
                LOG.info("The API key file was read again: %d keys.", len(self._from_file))
        except (OSError, ValueError) as error:
            LOG.error("The API key file cannot be read; the keys read before still hold: %s", error)
            return str(error)
        return None

    def _read(self, path: Path, is_asked: bool) -> bool:
        """Read the file, unless it may still be being written; says whether its keys hold now. is_asked: what was just
        written is read, too, if its last line has an end. Raises ValueError for what makes no keys."""
        stamp = _stamp(path)
        if not is_asked and self._is_new(stamp, STILL_SECONDS):
            return False
        content = path.read_bytes()
        if content[-1:] not in (b"", b"\n") and self._is_new(_stamp(path), UNENDED_SECONDS):
            if is_asked:
                list(_lines(content.decode()))
                told = (
                    "The API key file's last line has no end: the file is read when it has been still for %g seconds."
                )
                LOG.warning(told, UNENDED_SECONDS)
            return False
        self._stamp = stamp  # also of what makes no keys, which is not read again for each request
        self._from_file = list(_lines(content.decode()))
        return True

    def _is_new(self, stamp: tuple[int, int], seconds: float) -> bool:
        """Whether the file was written to in the last seconds. One of the future was not: its clock is another one."""
        return 0 <= self._now() - stamp[0] / 1e9 < seconds


def _stamp(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_mtime_ns, status.st_size


def _listed(keys: str | None, is_admin: bool) -> Iterable[StoredKey]:
    return [StoredKey.read(key.strip(), is_admin) for key in (keys or "").split(",") if key.strip()]


def _lines(text: str) -> Iterable[StoredKey]:
    """One key a line, followed by its limits; a word that begins with # begins a comment."""
    for number, line in enumerate(text.splitlines(), start=1):
        words = list(takewhile(lambda word: not word.startswith("#"), line.split()))
        try:
            if words:
                yield _key_of(words)
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from None


def _key_of(words: list[str]) -> StoredKey:
    """The key of a line. A line that lacks its key is refused: its first word would be a key that anyone can guess."""
    is_admin = words[0] == ADMIN
    key, *terms = words[is_admin:] or [ADMIN]
    if key == ADMIN or key.partition("=")[0] in KeyTerms.__dataclass_fields__:
        raise ValueError("the key is missing")
    return StoredKey.read(key, is_admin, KeyTerms.read(terms))
