"""The API keys of a server: hashed when read, compared in constant time, the file's read again when it changes.

Knows nothing of HTTP. A key is never kept: only its SHA-256 is.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from decoding.errors import ConfigError

LOG = logging.getLogger("gander.keys")
HASH_PREFIX = "sha256:"
HASHED = re.compile(r"sha256:([0-9a-fA-F]{64})")
ADMIN_PREFIX = "admin "
TENANT_LENGTH = 32  # hexadecimal digits of a key's hash that name its owner
LABEL_LENGTH = 8  # of them in logs


@dataclass(frozen=True, slots=True)
class KeyTerms:
    """Of one key. weight: of its share against other keys' where there is not enough for all; None: no limit."""

    weight: float = 1.0
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None

    @classmethod
    def read(cls, words: Iterable[str]) -> KeyTerms:
        """Of NAME=NUMBER each. Raises ValueError that quotes no unknown word: it may be part of a key."""
        given: dict[str, float] = {}
        for word in words:
            name, _, text = word.partition("=")
            if name not in cls.__dataclass_fields__ or name in given:
                raise ValueError(f"behind a key come {', '.join(cls.__dataclass_fields__)}, as NAME=NUMBER, each once")
            number = float(text) if name == "weight" else int(text)
            if not 0 < number < math.inf:
                raise ValueError(f"{name} must be above 0, and {text} is not")
            given[name] = number
        return cls(**given)  # type: ignore[arg-type]


NO_TERMS = KeyTerms()


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sent a request. tenant: "" without a key; on a server that has none everybody is the admin."""

    tenant: str = ""
    is_admin: bool = True
    terms: KeyTerms = NO_TERMS

    @property
    def is_known(self) -> bool:
        return self.is_admin or self.tenant != ""

    @property
    def label(self) -> str:
        """What logs call the key: the first of its hash, as `sha256sum` and the owners of sessions have it."""
        return self.tenant[:LABEL_LENGTH]


@dataclass(frozen=True, slots=True)
class StoredKey:
    digest: bytes
    is_admin: bool
    terms: KeyTerms = NO_TERMS

    @classmethod
    def read(cls, text: str, is_admin: bool, terms: KeyTerms = NO_TERMS) -> StoredKey:
        """A key as it is, or its hash as sha256:HEX."""
        return cls(bytes.fromhex(hashed(text).removeprefix(HASH_PREFIX)), is_admin, terms)


def hashed(key: str) -> str:
    """A key's hash as sha256:HEX; one that is a hash already as it is."""
    return key if is_hashed(key) else HASH_PREFIX + hashlib.sha256(key.encode()).hexdigest()


def is_hashed(key: str) -> bool:
    return HASHED.fullmatch(key) is not None


class KeyRing:
    """file: read at once, and again when its time or size changes; a file that cannot be read keeps the old keys."""

    def __init__(self, keys: str | None, admin_keys: str | None, file: str | None) -> None:
        """Raises ConfigError where the file cannot be read at the start."""
        self._fixed = [*_listed(keys, is_admin=False), *_listed(admin_keys, is_admin=True)]
        self._path = None if file is None else Path(file)
        self._stamp: tuple[int, int] | None = None
        self._from_file: list[StoredKey] = []
        if self._path is not None:
            try:
                self._read(self._path)
            except (OSError, ValueError) as error:
                raise ConfigError(f"the API key file {file} cannot be read: {error}") from None

    @property
    def is_open(self) -> bool:
        """No keys were configured: everybody may come in."""
        return not self._fixed and self._path is None

    def find(self, key: str) -> Caller | None:
        """Whose key this is. Every stored key is compared, so that the time taken tells nothing."""
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

    def _refresh(self) -> None:
        if self._path is None:
            return
        try:
            if self._stamp != _stamp(self._path):
                self._read(self._path)
                LOG.info("The API key file was read again: %d keys.", len(self._from_file))
        except (OSError, ValueError) as error:
            LOG.error("The API key file cannot be read; the keys read before still hold: %s", error)

    def _read(self, path: Path) -> None:
        stamp = _stamp(path)
        keys = list(_lines(path.read_text("utf-8")))
        self._from_file, self._stamp = keys, stamp


def _stamp(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_mtime_ns, status.st_size


def _listed(keys: str | None, is_admin: bool) -> Iterable[StoredKey]:
    return [StoredKey.read(key.strip(), is_admin) for key in (keys or "").split(",") if key.strip()]


def _lines(text: str) -> Iterable[StoredKey]:
    """One key a line, with its terms behind it; empty lines and lines that begin with # are skipped."""
    for number, line in enumerate(text.splitlines(), start=1):
        entry = line.strip()
        if not entry or entry.startswith("#"):
            continue
        key, *words = entry.removeprefix(ADMIN_PREFIX).split()
        try:
            terms = KeyTerms.read(words)
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from None
        yield StoredKey.read(key, entry.startswith(ADMIN_PREFIX), terms)
