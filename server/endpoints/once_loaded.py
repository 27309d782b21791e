"""Runs a generating request once its model is loaded. A stream that waits gets comments meanwhile, which say how far
that is.

Invariant: what goes wrong before the first comment is answered with its own status; later it is the last event.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import ExitStack, aclosing

from fastapi import Request
from fastapi.responses import Response

from server.engine_client.client import EngineClient
from server.engine_client.replies import PROMPT_PATIENCE
from server.http.errors import ApiError, internal_error
from server.http.holds import hold
from server.http.sender import Sender
from server.http.sse import EVENTS, EventStream, last_event, until_disconnect
from server.models.model import Model
from server.prompts.served_model import ServedModel
from server.schemas.generation import SamplingRequest
from server.service import Service

Run = Callable[[ServedModel, EngineClient], Awaitable[Response]]


async def once_loaded(request: Request, body: SamplingRequest, sender: Sender, service: Service, run: Run) -> Response:
    """The response of `run`, which gets the body's model and its client. Raises ApiError."""
    model = service.hold_model(request, body.model, body.keep_alive)
    timeout = sender.timeout if body.timeout is None else body.timeout
    if (served := model.served(body.model)) is not None:
        return await run(served, model.client)
    loading = asyncio.ensure_future(service.loaded(model, body.model, timeout))
    given_up = ExitStack()
    given_up.callback(loading.cancel)
    hold(request, given_up)
    patience = min(model.settings.keep_alive_seconds, PROMPT_PATIENCE) if body.stream else None
    await until_disconnect(request.receive, _looked_at(loading, patience))
    if loading.done():
        return await run(loading.result(), model.client)
    return EventStream(_frames(request, loading, model, service, run, patience), EVENTS.media_type)


async def _looked_at(loading: asyncio.Future[ServedModel], patience: float | None) -> bool:
    """Whether the model is loaded, or cannot be, after so many seconds."""
    done, _ = await asyncio.wait({loading}, timeout=patience)
    return bool(done)


async def _frames(
    request: Request,
    loading: asyncio.Future[ServedModel],
    model: Model,
    service: Service,
    run: Run,
    patience: float | None,
) -> AsyncGenerator[bytes]:
    """Comments until the model is loaded, then the stream of `run`."""
    path = request.url.path
    try:
        while not loading.done():
            yield _comment(model)
            await _looked_at(loading, patience)
        response = await run(loading.result(), model.client)
        assert isinstance(response, EventStream), response
        async with aclosing(response.frames) as frames:
            async for data in frames:
                yield data
    except ApiError as error:
        service.metrics.on_error(error)
        yield last_event(error, path)
    except Exception:
        yield last_event(internal_error(), path)
        raise


def _comment(model: Model) -> bytes:
    """A comment is one line, whatever a worker's sentence holds."""
    status = model.status
    sentence = " ".join(status.sentence.split())
    return f": loading {model.name} {status.fraction:.0%}: {sentence}\n\n".encode()
