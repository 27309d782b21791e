"""A hub on 127.0.0.1 as far as pulls ask it: what a repository has, and its files, whole or from a byte on."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

COMMIT = "c" * 40
LARGE = 1000  # bytes from which on a file is in LFS


@dataclass
class LocalHub:
    """repos: the files of each by name. breaks: after how many bytes of a reply a file's connection is closed; if
    `is_stuck`, it says nothing more until `go_on`. has_ranges: whether it sends parts of files. fetched: each file that
    was sent, and from which byte on."""

    repos: Mapping[str, Mapping[str, bytes]]
    url: str = ""
    breaks: dict[str, int] = field(default_factory=dict)
    is_stuck: bool = False
    has_ranges: bool = True
    status: int = 200
    false_hashes: set[str] = field(default_factory=set)
    commit: str = COMMIT
    fetched: list[tuple[str, int]] = field(default_factory=list)
    go_on: threading.Event = field(default_factory=threading.Event)

    def sha256(self, name: str, content: bytes) -> str:
        return "0" * 64 if name in self.false_hashes else hashlib.sha256(content).hexdigest()

    def info(self, repo: str) -> dict[str, Any]:
        siblings = []
        for name, content in self.repos[repo].items():
            lfs = {"sha256": self.sha256(name, content), "size": len(content), "pointerSize": 100}
            entry = {"rfilename": name, "size": len(content), "blobId": hashlib.sha1(content).hexdigest()}
            siblings.append(entry | ({"lfs": lfs} if len(content) >= LARGE else {}))
        return {"id": repo, "modelId": repo, "sha": self.commit, "siblings": siblings}


@contextmanager
def local_hub(repos: Mapping[str, Mapping[str, bytes]]) -> Iterator[LocalHub]:
    hub = LocalHub(repos)

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            path = unquote(urlsplit(self.path).path).removeprefix("/")
            if hub.status != 200:
                self.reply(hub.status, b"")
            elif path.startswith("api/models/"):
                repo = path.removeprefix("api/models/").partition("/revision/")[0]
                if repo in hub.repos:
                    self.reply(200, json.dumps(hub.info(repo)).encode())
                else:
                    self.reply(404, b"", {"X-Error-Code": "RepoNotFound"})
            else:
                repo, _, rest = path.partition("/resolve/")
                self.send_file(rest.partition("/")[2], hub.repos.get(repo, {}))

        def send_file(self, name: str, files: Mapping[str, bytes]) -> None:
            if name not in files:
                self.reply(404, b"", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": hub.commit})
                return
            content = files[name]
            is_large = len(content) >= LARGE
            etag = hub.sha256(name, content) if is_large else hashlib.sha1(content).hexdigest()
            headers = {"ETag": f'"{etag}"', "X-Repo-Commit": hub.commit}
            start = int((self.headers.get("Range") or "bytes=0-").removeprefix("bytes=").partition("-")[0])
            start = start if hub.has_ranges else 0
            if self.command == "GET":
                hub.fetched.append((name, start))
            if start:
                headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
            self.reply(206 if start else 200, content[start:], headers, hub.breaks.get(name))

        def reply(
            self, status: int, body: bytes, headers: Mapping[str, str] | None = None, most: int | None = None
        ) -> None:
            self.send_response(status)
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body[:most])
                self.wfile.flush()
                if most is not None and hub.is_stuck:
                    hub.go_on.wait()
            self.close_connection = True

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        hub.url = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield hub
        finally:
            hub.go_on.set()
            server.shutdown()


def use_hub(monkeypatch: pytest.MonkeyPatch, url: str, cache: Path) -> None:
    """Have huggingface_hub ask this hub, and keep what it has of it in this folder."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", url + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
