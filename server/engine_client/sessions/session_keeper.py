"""The keeper of one worker's sessions outside it: copies for the next process, and files for the next server.

Owns the copies, what is still to be written, and a thread that reads and writes. Knows nothing of what is in a session.
Invariant: a kept session is given to the worker before the first request of that session.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from decoding.core.session_info import SessionState
from decoding.worker.messages import Ready, RestoreSession, SessionAnswer, SessionForgotten, SessionKept, ToWorker
from server.engine_client.sessions.kept_sessions import KeptSessions
from server.engine_client.sessions.session_file import seal, unseal
from server.engine_client.sessions.session_folder import SessionFolder
from server.engine_client.sessions.session_questions import SessionQuestions
from server.http.errors import ApiError, unavailable

LOG = logging.getLogger("gander.sessions")
CHECK_SECONDS = 1.0  # between two checks whether it is time to write
WRITE_SECONDS = 60.0  # at most, between two writes while requests come without a pause, and after one that failed
TIDY_SECONDS = 60.0  # between two looks through the folder
RECALL_SECONDS = 2.0  # that a request waits for its session's file
MOST_UNWRITTEN_BYTES = 64 * 2**20  # above, they are written, or dropped where they cannot be
MOST_KNOWN = 65536  # names of sessions that are remembered as the worker's; others are given to it again

T = TypeVar("T")


class SessionKeeper:
    """`send` hands a message to the worker and returns False if there is none. Without a folder nothing outlives the
    server. `is_idle` says whether the worker has no request. Copies take most_bytes at most."""

    def __init__(
        self,
        send: Callable[[ToWorker], bool],
        folder: SessionFolder | None,
        is_idle: Callable[[], bool],
        most_bytes: int,
    ) -> None:
        self.questions = SessionQuestions(send)
        self._has_worker = False
        self._send = send
        self._folder = folder
        self._is_idle = is_idle
        self._model = ""  # the identity of the worker's model
        self._copies = KeptSessions(most_bytes)
        self._arriving: SessionState | None = None  # as far as its parts have come
        self._unwritten: dict[tuple[str, str], SessionState] = {}
        self._known: OrderedDict[tuple[str, str], None] = OrderedDict()
        self._recalling = asyncio.Lock()
        self._thread = ThreadPoolExecutor(1, "sessions")  # one thread, so that a read finds what was written before
        self._writing: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self._folder is not None:
            self._writing = asyncio.create_task(self._write_now_and_then(self._folder), name="sessions")

    async def close(self, may_ask: bool) -> None:
        """Write all copies and, where may_ask, first ask the worker for its latest. Safe to call twice."""
        if self._folder is None or self._writing is None:
            return
        self._writing.cancel()
        self._writing = None
        if may_ask and self._has_worker:
            try:
                await self.questions.hand_over()
            except ApiError as error:
                LOG.warning("Sessions are kept as they last were, not as they are: %s", error.message)
        await self._write(self._folder)
        await self._run(self._folder.tidy)
        self._thread.shutdown()
        self._thread = ThreadPoolExecutor(1, "sessions")  # which starts no thread before it is used

    def on_ready(self, ready: Ready) -> None:
        """Give a new process what the one before remembered."""
        if self._model not in ("", ready.identity):
            self._copies.clear()
            self._unwritten.clear()
        self._has_worker, self._model = True, ready.identity
        self._known.clear()
        for state in self._copies.states():
            self._restore(state)

    def on_death(self) -> None:
        self._has_worker = False

    def on_news(self, news: SessionKept | SessionForgotten | SessionAnswer) -> None:
        if isinstance(news, SessionKept):
            self._take_part(news)
        elif isinstance(news, SessionForgotten):
            self._copies.forget(news.tenant, news.session_id)
            self._known.pop((news.tenant, news.session_id), None)
        else:
            self.questions.on_answer(news)

    async def recall(self, tenant: str, session_id: str, seconds: float = RECALL_SECONDS) -> None:
        """Give the worker what is kept of a session, unless it has that. Call it before a request of the session. Where
        that takes longer than so many seconds, the session starts empty."""
        try:
            async with asyncio.timeout(seconds):
                await self._recall(tenant, session_id)
        except TimeoutError:
            LOG.warning("A session was not read within %g s, and starts empty.", seconds)
            self._note_known((tenant, session_id))

    async def _recall(self, tenant: str, session_id: str) -> None:
        folder, name = self._folder, (tenant, session_id)
        if folder is None or name in self._known:
            return
        async with self._recalling:
            if name in self._known:
                return
            state = self._unwritten.get(name) or await self._run(partial(folder.read, *name, self._model))
            self._note_known(name)
            if state is not None:
                self._restore(state)

    def kept(self, tenant: str, session_id: str) -> SessionState | None:
        """The worker's last copy of a session, if there is one."""
        return self._copies.get(tenant, session_id) or self._unwritten.get((tenant, session_id))

    def adopt(self, state: SessionState, replaces: bool) -> None:
        """Give the worker another worker's session; one that it has already stays, unless this replaces it."""
        if replaces or (state.tenant, state.session_id) not in self._known:
            self._copies.keep(state)
            self._restore(state, replaces)

    async def forget(self, tenant: str, session_id: str) -> bool:
        """Forget a session in the worker and beside it, but not in files. Returns whether there was one. Raises
        ApiError without an answer."""
        was_there = self.kept(tenant, session_id) is not None
        if self._has_worker:
            was_there = await self.questions.delete(tenant, session_id)
        self._copies.forget(tenant, session_id)
        self._unwritten.pop((tenant, session_id), None)
        return was_there

    async def delete(self, tenant: str, session_id: str) -> bool:
        """Forget a session everywhere. Returns whether there was one. Raises ApiError without an answer, or where its
        file stays."""
        was_there = await self.forget(tenant, session_id)
        return await self._delete_file(tenant, session_id) or was_there

    async def export(self, tenant: str, session_id: str) -> bytes | None:
        """A session as bytes for another server, or None if there is none. Raises ApiError without an answer."""
        await self._recall(tenant, session_id)
        state = await self.questions.copy(tenant, session_id)
        return None if state is None else seal(state, self._model)

    async def take_over(self, tenant: str, session_id: str, data: bytes) -> None:
        """Replace a session by one that another server exported. Raises ValueError, with a clause, for bytes that are
        no session, and ApiError without an answer; then the session is as it was."""
        state = unseal(data, self._model, tenant, session_id)
        problem = await self.questions.replace(state)
        if problem is not None:
            raise ValueError(problem)
        self._note_known((tenant, session_id))
        self._keep(state)
        if not state.num_bytes:  # it gets no file, and the old one's must not come back
            self._unwritten.pop((tenant, session_id), None)
            await self._delete_file(tenant, session_id)

    async def _delete_file(self, tenant: str, session_id: str) -> bool:
        if self._folder is None:
            return False
        try:
            return await self._run(partial(self._folder.delete, tenant, session_id))
        except OSError as error:
            LOG.warning("The file of a session cannot be deleted: %s.", error.strerror)
            raise unavailable("The session's file cannot be deleted.", "session_not_deleted") from None

    def _take_part(self, part: SessionKept) -> None:
        """Keep a copy once it is whole."""
        before = None if part.is_first else self._arriving
        self._arriving = part.state if before is None else before.with_arrays(part.state.stores)
        if part.is_last:
            self._keep(self._arriving)

    def _keep(self, state: SessionState) -> None:
        self._copies.keep(state)
        if self._folder is not None and state.num_bytes:
            self._unwritten[state.tenant, state.session_id] = state

    def _restore(self, state: SessionState, replaces: bool = False) -> None:
        self._send(RestoreSession(state=state, replaces=replaces))
        self._note_known((state.tenant, state.session_id))

    def _note_known(self, name: tuple[str, str]) -> None:
        self._known[name] = None
        if len(self._known) > MOST_KNOWN:
            self._known.popitem(last=False)

    async def _write_now_and_then(self, folder: SessionFolder) -> None:
        loop = asyncio.get_running_loop()
        next_write = next_tidy = loop.time()
        has_failed = False
        while True:
            has_pause = self._unwritten and self._is_idle() and not has_failed
            if loop.time() >= next_write or has_pause or self._num_unwritten_bytes() > MOST_UNWRITTEN_BYTES:
                has_failed = not await self._write(folder)
                next_write = loop.time() + WRITE_SECONDS
            if loop.time() >= next_tidy:
                await self._run(folder.tidy)
                next_tidy = loop.time() + TIDY_SECONDS
            await asyncio.sleep(CHECK_SECONDS)

    async def _write(self, folder: SessionFolder) -> bool:
        """Write what is unwritten. Returns whether all could be written; what could not is tried again, unless it is
        too much."""
        states = dict(self._unwritten)
        were_written = await self._run(lambda: [folder.write(state, self._model) for state in states.values()])
        for (name, state), was_written in zip(states.items(), were_written, strict=True):
            is_latest = self._unwritten.get(name) is state
            if is_latest and (was_written or self._num_unwritten_bytes() > MOST_UNWRITTEN_BYTES):
                del self._unwritten[name]
        return all(were_written)

    def _num_unwritten_bytes(self) -> int:
        return sum(state.num_bytes for state in self._unwritten.values())

    async def _run(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)
