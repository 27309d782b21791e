"""The application that Ray Serve runs when `serve deploy` gets a file that `gander ray-config` wrote.

Owns what a replica is and how the front reaches one. No other file of the server imports ray.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Mapping
from typing import Any

from ray import serve
from ray.exceptions import RayActorError, TaskCancelledError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError, ReplicaUnavailableError
from ray.serve.handle import DeploymentHandle

from server.app import create_app, create_service, max_put_bytes
from server.config import ServerSettings
from server.http.errors import ApiError
from server.ray.config_file import FRONT, GANDER
from server.ray.front import Ask, Front, ReplicaLost
from server.ray.http_call import HttpRequest, ReplyHead, call

RETRY_AFTER = 1  # seconds that a client is told to wait where the replicas' queues are full
LOST = (RayActorError, ReplicaUnavailableError, DeploymentUnavailableError)


class Replica:
    """A whole server without its port, ready once its model is. settings: those of `gander serve`."""

    async def __init__(self, settings: Mapping[str, Any]) -> None:  # type: ignore[misc]  # Ray awaits it
        self._stack = contextlib.AsyncExitStack()
        self._service = create_service(ServerSettings(**settings))
        self._app = create_app(self._service)
        await self._stack.enter_async_context(self._app.router.lifespan_context(self._app))
        while self._service.status.state != "ready":
            self.check_health()
            await asyncio.sleep(0.1)

    async def answer(self, request: HttpRequest) -> AsyncGenerator[ReplyHead | bytes]:
        async with contextlib.aclosing(call(self._app, request)) as pieces:
            async for piece in pieces:
                yield piece

    def check_health(self) -> None:
        """Raises where the engine was given up, so that Ray replaces the replica; not while a worker is restarted."""
        if self._service.status.state == "failed":
            raise RuntimeError(self._service.status.sentence)

    async def __del__(self) -> None:
        """Ray awaits this after the replica's calls have ended."""
        await self._stack.aclose()


def build(args: Mapping[str, Any]) -> serve.Application:
    """The Ray application. args: settings of `gander serve`."""
    most_bytes = max_put_bytes(ServerSettings(**args))  # of smaller bodies each replica has the limit

    def front() -> Front:
        """Ray calls this in the front's own process."""
        return Front(_ask_of(serve.get_deployment_handle(GANDER, serve.get_replica_context().app_name)), most_bytes)

    replicas = serve.deployment(name=GANDER)(Replica).bind(dict(args))
    return serve.deployment(name=FRONT)(serve.ingress(front)()).bind(replicas)


def _ask_of(handle: DeploymentHandle[Any]) -> Ask:
    async def ask(request: HttpRequest, session: str | None) -> AsyncGenerator[ReplyHead | bytes]:
        reached = handle.options(method_name="answer", stream=True, session_id=session or "")
        pieces = reached.remote(request)
        try:
            async for piece in pieces:
                yield piece
        except BackPressureError:
            message = "Too many requests are waiting for a replica."
            raise ApiError(429, message, None, "queue_full", RETRY_AFTER) from None
        except (*LOST, TaskCancelledError):
            raise ReplicaLost from None
        except (GeneratorExit, asyncio.CancelledError):  # the client has disconnected
            pieces.cancel()
            raise

    return ask
