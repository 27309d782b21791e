"""Questions to the worker and their answers: each is asked with an id that its answer repeats.

Knows nothing of HTTP; the invariant: nobody waits longer than `ANSWER_SECONDS`, whatever becomes of the worker.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable

from decoding.core.session_info import SessionInfo
from decoding.worker.messages import DeleteSession, ListSessions, SessionDeleted, Sessions, ToWorker
from server.http.errors import unavailable

ANSWER_SECONDS = 10.0


class SessionDesk:
    """send: hands a message to the worker, False if there is none."""

    def __init__(self, send: Callable[[ToWorker], bool]) -> None:
        self._send = send
        self._waiting: dict[str, asyncio.Future[Sessions | SessionDeleted]] = {}

    async def sessions(self, tenant: str | None) -> list[SessionInfo]:
        """What drafting remembers; tenant None: everybody's. Raises ApiError without an answer."""
        question_id = uuid.uuid4().hex
        answer = await self._ask(question_id, ListSessions(id=question_id, tenant=tenant))
        assert isinstance(answer, Sessions)
        return answer.sessions

    async def delete(self, tenant: str, session_id: str) -> bool:
        """Whether there was such a session. Raises ApiError without an answer."""
        question_id = uuid.uuid4().hex
        answer = await self._ask(question_id, DeleteSession(id=question_id, tenant=tenant, session_id=session_id))
        assert isinstance(answer, SessionDeleted)
        return answer.found

    def on_answer(self, answer: Sessions | SessionDeleted) -> None:
        waiting = self._waiting.get(answer.id)
        if waiting is not None and not waiting.done():
            waiting.set_result(answer)

    async def _ask(self, question_id: str, question: ListSessions | DeleteSession) -> Sessions | SessionDeleted:
        self._waiting[question_id] = waiting = asyncio.get_running_loop().create_future()
        try:
            if not self._send(question):
                raise unavailable("The worker cannot be reached.", "worker_died")
            async with asyncio.timeout(ANSWER_SECONDS):
                return await waiting
        except TimeoutError:
            raise unavailable("The worker did not answer in time.", "worker_died") from None
        finally:
            del self._waiting[question_id]
