"""Renders chat templates in a process of their own, which the kernel ends at limits of time and memory.

A template is a stranger's program, and may ask for any time and memory at its first line or for one message in a
million. `python -m server.prompts.template_process` is that process: it compiles templates, then answers one question
after another, and nothing that it answers is believed beyond being text.
"""

from __future__ import annotations

import asyncio
import contextlib
import pickle
import resource
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any

from jinja2 import Template

from decoding.process.machine import address_bytes, limit_addresses
from server.prompts.jinja_template import TemplateRefusal, compiled, rendered

SECONDS = 2.0  # of processor time, for all templates to be compiled and for each rendering
NUM_BYTES = 128 * 2**20  # of memory, beyond what the process begins with
BYTES_PER_ASKED = 16  # of memory, and a quarter as many of text, for each byte of a conversation beyond that
MAX_CHARS = 4 * 2**20  # of the rendered text of a short conversation
MOST_READ = 2**20  # bytes at a time
PATIENCE = 60.0  # seconds of real time, long because the machine may be busy
HEADER = struct.Struct("!?Q")  # of an answer: whether it is a text or a refusal; of everything: how many bytes follow
_TOO_LARGE = f"takes more than {NUM_BYTES >> 20} MiB"


class TemplateProcess:
    """sources: templates by name. Call `start` to have them compiled, or just `render`, and `close` at last. A process
    that met a limit is replaced at the next rendering."""

    def __init__(self, sources: Mapping[str, str]) -> None:
        self._sources = dict(sources)
        self._child: _Child | None = None
        self._starting = Lock()  # a start goes on in its thread where the rendering that began it is cancelled
        self._turn = asyncio.Lock()

    def start(self) -> None:
        """Start the process and have the templates compiled. Blocks. Raises TemplateRefusal."""
        with self._starting:
            self.close()
            self._child = _Child.compiling(self._sources)

    async def render(
        self, name: str, names: Mapping[str, Any], wanted: Sequence[str] = (), image_mark: str = ""
    ) -> str:
        """The prompt's text, see `rendered`. Raises TemplateRefusal."""
        async with self._turn:
            if self._child is None or not self._child.is_alive:
                await asyncio.to_thread(self.start)
            child = self._child
            assert child is not None
            try:
                async with asyncio.timeout(PATIENCE):
                    return await _ask(child.channel, pickle.dumps((name, names, wanted, image_mark)))
            except (EOFError, OSError) as error:  # a TimeoutError is one
                raise TemplateRefusal(await asyncio.to_thread(child.cause_of_death, error)) from None
            except asyncio.CancelledError:
                self.close()  # its answer would be taken for that to the next question
                raise

    def close(self) -> None:
        """End the process, if there is one."""
        if self._child is not None:
            self._child.end()
        self._child = None


@dataclass(frozen=True, slots=True)
class _Child:
    """The process, and what it is asked and answers through."""

    process: subprocess.Popen[bytes]
    channel: socket.socket

    @classmethod
    def compiling(cls, sources: dict[str, str]) -> _Child:
        """A process that has compiled these templates. Raises TemplateRefusal."""
        ours, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-m", __name__]
            # A session of its own, so that Ctrl-C reaches the server alone, which drains first.
            process = subprocess.Popen(
                command, stdin=theirs.fileno(), stderr=subprocess.DEVNULL, start_new_session=True
            )
        child = cls(process, ours)
        try:
            ours.settimeout(PATIENCE)
            ours.sendall(_frame(pickle.dumps(sources)))
            _said(_read_frame(ours))
            ours.setblocking(False)
        except (EOFError, OSError) as error:
            raise TemplateRefusal(child.cause_of_death(error)) from None
        except TemplateRefusal:
            child.end()
            raise
        return child

    @property
    def is_alive(self) -> bool:
        return self.process.poll() is None

    def end(self) -> None:
        self.channel.close()
        self.process.kill()
        self.process.wait()

    def cause_of_death(self, error: Exception) -> str:
        """What a process that answers no more died of. Blocks until it is gone."""
        status = None if isinstance(error, TimeoutError) else self.process.wait(PATIENCE)
        self.end()
        if status is None:
            return f"did not come to an end in {PATIENCE:g} seconds"
        # Without memory left to report it, a process dies in any way.
        return f"takes more than {SECONDS:g} seconds" if status == -signal.SIGPROF else _TOO_LARGE


def _frame(content: bytes, is_text: bool = True) -> bytes:
    return HEADER.pack(is_text, len(content)) + content


def _num_missing(received: bytearray) -> int:
    """How many bytes of a frame are still to come, as far as is known."""
    is_begun = len(received) >= HEADER.size
    return HEADER.size + (HEADER.unpack_from(received)[1] if is_begun else 0) - len(received)


def _said(frame: bytearray) -> str:
    text = frame[HEADER.size :].decode("utf-8", "surrogatepass")
    if not HEADER.unpack_from(frame)[0]:
        raise TemplateRefusal(text)
    return text


async def _ask(channel: socket.socket, question: bytes) -> str:
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(channel, _frame(question))
    answer = bytearray()
    while num_missing := _num_missing(answer):
        answer += _received(await loop.sock_recv(channel, min(num_missing, MOST_READ)))
    return _said(answer)


def _read_frame(channel: socket.socket) -> bytearray:
    frame = bytearray()
    while num_missing := _num_missing(frame):
        frame += _received(channel.recv(min(num_missing, MOST_READ)))
    return frame


def _received(piece: bytes) -> bytes:
    if not piece:
        raise EOFError
    return piece


def _serve(channel: socket.socket) -> None:
    """Compile the templates that come first, then render until the server closes the channel."""
    num_begun = address_bytes()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    templates: dict[str, Template] = {}

    def compile_all(sources: bytes) -> str:
        templates.update({name: compiled(text) for name, text in pickle.loads(sources).items()})
        return ""

    def render(question: bytes) -> str:
        name, names, wanted, image_mark = pickle.loads(question)
        text = rendered(templates[name], names, wanted, image_mark)
        most = max(MAX_CHARS, len(question) * BYTES_PER_ASKED // 4)
        if len(text) > most:
            raise TemplateRefusal(f"writes more than {most} characters")
        return text

    work: Callable[[bytes], str] = compile_all
    with contextlib.suppress(EOFError):
        while True:
            asked = bytes(_read_frame(channel)[HEADER.size :])
            channel.sendall(_limited(work, asked, num_begun + NUM_BYTES + len(asked) * BYTES_PER_ASKED))
            work = render


def _limited(work: Callable[[bytes], str], asked: bytes, most_bytes: int) -> bytes:
    """The frame of what `work` returns or refuses. The kernel ends the process where it takes too long."""
    room = resource.getrlimit(resource.RLIMIT_AS)
    limit_addresses(most_bytes)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        return _frame(work(asked).encode("utf-8", "surrogatepass"))
    except TemplateRefusal as refusal:
        return _frame(str(refusal).encode("utf-8", "surrogatepass"), is_text=False)
    except MemoryError:
        return _frame(_TOO_LARGE.encode(), is_text=False)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        resource.setrlimit(resource.RLIMIT_AS, room)


if __name__ == "__main__":
    with socket.socket(fileno=sys.stdin.fileno()) as server:
        _serve(server)
