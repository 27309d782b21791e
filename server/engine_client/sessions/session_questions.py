"""Questions about sessions to a worker, and their answers. Each question has an id that its answer repeats.

Knows nothing of HTTP. Invariant: nobody waits longer than `ANSWER_SECONDS`, whatever becomes of the worker.
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


class SessionQuestions:
    """`send` hands a message to the worker and returns False if there is none. The questions raise ApiError without an
    answer."""

    def __init__(self, send: Callable[[ToWorker], bool]) -> None:
        self._send = send
        self._waiting: dict[str, asyncio.Future[SessionAnswer]] = {}

    async def infos(self, tenant: str | None) -> list[SessionInfo]:
        """The sessions of one tenant, or of all where tenant is None."""
        return (await self._ask(ListSessions(id=_new_id(), tenant=tenant), Sessions)).sessions

    async def delete(self, tenant: str, session_id: str) -> bool:
        """Have the worker forget a session. Returns whether there was one."""
        question = DeleteSession(id=_new_id(), tenant=tenant, session_id=session_id)
        return (await self._ask(question, SessionDeleted)).found

    async def copy(self, tenant: str, session_id: str) -> SessionState | None:
        """All that a session holds, or None if there is no such session."""
        return (await self._ask(CopySession(id=_new_id(), tenant=tenant, session_id=session_id), SessionCopied)).state

    async def replace(self, state: SessionState) -> str | None:
        """Give the worker a session, in the place of one that it has. Returns what is wrong with it, if anything; then
        the worker has what it had."""
        return (await self._ask(RestoreSession(id=_new_id(), state=state, replaces=True), SessionRestored)).problem

    async def hand_over(self) -> None:
        """Have the worker send a copy of every session that was used. Returns when all have come."""
        await self._ask(HandOver(id=_new_id()), HandedOver)

    def on_answer(self, answer: SessionAnswer) -> None:
        waiting = self._waiting.get(answer.id)
        if waiting is not None and not waiting.done():
            waiting.set_result(answer)

    async def _ask(self, question: SessionQuestion, kind: type[A]) -> A:
        """The answer, which is of this kind. Raises ApiError without one."""
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
