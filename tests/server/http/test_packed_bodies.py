"""Bodies that clients send packed: read, bounded by what they unpack to, or refused with a sentence."""

from __future__ import annotations

import gzip
import json
import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from server.config import ServerSettings
from tests.server.servers import RunningServer, make_model_folder, running_server

BODY = {"prompt": json.dumps({"say": "abc"}), "max_tokens": 9}
PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "x-gzip": gzip.compress,
    "GZIP": gzip.compress,
    "gzip ,identity": gzip.compress,
    "deflate": zlib.compress,
    "identity": bytes,
    "": bytes,
}
MOST = 4 * 2**20


def post(server: RunningServer, data: Any, encoding: str, path: str = "/v1/completions") -> httpx.Response:
    headers = {"content-type": "application/json", "content-encoding": encoding}
    return server.http.post(path, content=data, headers=headers)


@pytest.mark.parametrize("encoding", PACKERS)
def test_a_packed_body_is_read(server: RunningServer, encoding: str) -> None:
    data = PACKERS[encoding](json.dumps(BODY).encode())
    for sent in (data, iter((data[:5], data[5:]))):  # at once, and in chunks
        response = post(server, sent, encoding)
        assert response.status_code == 200, response.text
        assert response.json()["choices"][0]["text"] == "abc"


def test_a_body_of_many_pieces_is_read(server: RunningServer) -> None:
    words = [f"{number * 7919 % 10007}" for number in range(2**17)]
    body = json.dumps({"model": server.model, "prompt": " ".join(words)}).encode()
    for pack in (gzip.compress, zlib.compress):
        error = post(server, pack(body), "gzip", "/tokenize").json()["error"]
        assert error["code"] == "context_length_exceeded", "read to its end"
    exact = b'{"prompt": "' + b"a" * (MOST - 14) + b'"}'
    assert post(server, gzip.compress(exact), "gzip").json()["error"]["code"] == "context_length_exceeded"


@pytest.mark.parametrize("size", [MOST + 1, 2**28])
def test_a_body_that_unpacks_to_too_much_costs_nothing(server: RunningServer, size: int) -> None:
    packer = zlib.compressobj(wbits=31)
    data = b"".join(packer.compress(b" " * 2**20) for _ in range(size // 2**20))
    data += packer.compress(b" " * (size % 2**20)) + packer.flush()
    tracemalloc.start()
    try:
        response = post(server, data, "gzip")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (413, "body_too_large")
    assert "unpacked" in error["message"]
    assert peak < 4 * MOST


EMPTY = gzip.compress(b"{}")
NOT_PACKED = {
    "nothing": b"",
    "plain": b"{}",
    "without its end": EMPTY[:-4],
    "its head": EMPTY[:9],
    "more behind it": EMPTY + b"more",
    "several": EMPTY * 3,
    "many of nothing": gzip.compress(b"") * 5000,
    "a wrong sum": EMPTY[:-8] + b"\0" * 8,
}


@pytest.mark.parametrize("name", NOT_PACKED)
def test_a_body_that_is_not_packed_as_it_says_is_refused(server: RunningServer, name: str) -> None:
    for path in ("/v1/completions", "/v1/messages", "/tokenize"):
        response = post(server, NOT_PACKED[name], "gzip", path)
        assert (response.status_code, response.json()["error"]["code"]) == (400, "invalid_encoding")
        assert "gzip" in response.json()["error"]["message"]


@pytest.mark.parametrize("encoding", ["br", "zstd", "compress", "gzip, gzip", "deflate, gzip", "x" * 900])
def test_another_packing_is_refused_with_those_that_are_read(server: RunningServer, encoding: str) -> None:
    response = post(server, json.dumps(BODY).encode(), encoding)
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (415, "unsupported_encoding")
    assert error["message"].endswith("reads gzip, deflate and identity.") or len(encoding) > 400
    assert response.headers["accept-encoding"] == "gzip, deflate"


def test_what_was_packed_is_read_as_any_body_is(tmp_path: Path) -> None:
    folder = make_model_folder(tmp_path / "toy")
    settings = ServerSettings(model=str(folder), drain_seconds=1, max_body_bytes=1024)
    with running_server(settings) as server:
        for pack, encoding in ((gzip.compress, "gzip"), (zlib.compress, "deflate"), (bytes, "identity")):
            assert post(server, pack(b"{"), encoding).json()["error"]["code"] == "invalid_json"
            assert post(server, pack(b" " * 1023 + b"{}"), encoding).status_code == 413
            within = b" " * 900 + json.dumps(BODY).encode()
            assert post(server, pack(within), encoding).status_code == 200
