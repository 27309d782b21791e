"""Questions about sessions to the worker and their answers: each is asked with an id that its answer repeats.

Knows nothing of HTTP; the invariant: nobody waits longer than `ANSWER_SECONDS`, whatever becomes of the worker.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from typing import TypeVar

from decoding.core.session_info import SessionInfo, SessionState
from decoding.worker.messages import (
    CopySession,
    DeleteSession,
    HandedOver,
    HandOver,
    ListSessions,
    RestoreSession,
    SessionAnswer,
    SessionCopied,
    SessionDeleted,
    SessionQuestion,
    SessionRestored,
    Sessions,
    ToWorker,
)
from server.http.errors import unavailable

ANSWER_SECONDS = 10.0

A = TypeVar("A", bound=SessionAnswer)


class SessionDesk:
    """send: hands a message to the worker, False if there is none."""

    def __init__(self, send: Callable[[ToWorker], bool]) -> None:
        self._send = send
        self._waiting: dict[str, asyncio.Future[SessionAnswer]] = {}

    async def sessions(self, tenant: str | None) -> list[SessionInfo]:
        """What drafting remembers; tenant None: everybody's."""
        return (await self._ask(ListSessions(id=_new_id(), tenant=tenant), Sessions)).sessions

    async def delete(self, tenant: str, session_id: str) -> bool:
        """Whether there was such a session."""
        question = DeleteSession(id=_new_id(), tenant=tenant, session_id=session_id)
        return (await self._ask(question, SessionDeleted)).found

    async def copy(self, tenant: str, session_id: str) -> SessionState | None:
        """All that a session holds, None if there is no such session."""
        return (await self._ask(CopySession(id=_new_id(), tenant=tenant, session_id=session_id), SessionCopied)).state

    async def restore(self, state: SessionState) -> str | None:
        """Give the worker a session that it does not have; why it cannot be, if so."""
        return (await self._ask(RestoreSession(id=_new_id(), state=state), SessionRestored)).problem

    async def hand_over(self) -> None:
        """Returns when all that the worker has of sessions has been told."""
        await self._ask(HandOver(id=_new_id()), HandedOver)

    def on_answer(self, answer: SessionAnswer) -> None:
        waiting = self._waiting.get(answer.id)
        if waiting is not None and not waiting.done():
            waiting.set_result(answer)

    async def _ask(self, question: SessionQuestion, kind: type[A]) -> A:
        """The answer, of this kind. Raises ApiError without one."""
        self._waiting[question.id] = waiting = asyncio.get_running_loop().create_future()
        try:
            if not self._send(question):
                raise unavailable("The worker cannot be reached.", "worker_died")
            async with asyncio.timeout(ANSWER_SECONDS):
                answer = await waiting
        except TimeoutError:
            raise unavailable("The worker did not answer in time.", "worker_died") from None
        finally:
            del self._waiting[question.id]
        assert isinstance(answer, kind), answer
        return answer


def _new_id() -> str:
    return uuid.uuid4().hex
