"""Limits of requests and tokens a minute for each key, and OpenAI's x-ratelimit headers that tell what is left.

Plain ASGI middleware, which decides before the body is read. Invariant: a reply that has begun is never cut short. It
may use more tokens than are left; the key's next requests are then refused until the balance is positive again.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from starlette.datastructures import MutableHeaders
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server.http.errors import ApiError, OnError
from server.http.keys import Caller, KeyTerms

PATHS = frozenset(
    {
        *("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/v1/embeddings"),
        *("/api/chat", "/api/generate", "/api/embed", "/api/embeddings"),
    }
)
MINUTE = 60.0
RATE_LIMIT_HEADERS = tuple(
    f"x-ratelimit-{what}-{kind}" for kind in ("requests", "tokens") for what in ("limit", "remaining", "reset")
)


class Bucket:
    """A token bucket: it holds `per_minute` when full, refills evenly in a minute, and its level may be negative."""

    def __init__(self, per_minute: int, clock: Callable[[], float]) -> None:
        self.per_minute = per_minute
        self._clock = clock
        self._level, self._time = float(per_minute), clock()

    @property
    def level(self) -> float:
        now = self._clock()
        self._level = min(self._level + (now - self._time) * self.per_minute / MINUTE, float(self.per_minute))
        self._time = now
        return self._level

    def take(self, amount: float) -> None:
        self._level = self.level - amount

    def seconds_until(self, amount: float) -> float:
        """Seconds until the level reaches `amount`; where that is more than the bucket holds, until it is full."""
        return max(min(amount, self.per_minute) - self.level, 0.0) * MINUTE / self.per_minute


class Allowance:
    """What one key has left of its limits. clock: in seconds."""

    def __init__(self, terms: KeyTerms, clock: Callable[[], float] = time.monotonic) -> None:
        self.terms = terms
        limits = {"requests": terms.requests_per_minute, "tokens": terms.tokens_per_minute}
        self._buckets = {kind: Bucket(limit, clock) for kind, limit in limits.items() if limit is not None}

    def take_request(self) -> None:
        """Count one request. Raises ApiError 429 where no request or no token is left."""
        self._require("requests", 1)
        self._require("tokens", 1)
        self._take("requests", 1)

    def take_prompt(self, num_tokens: int) -> None:
        """Count the prompt's tokens. Raises ApiError 429 where fewer are left, unless the bucket is full."""
        self._require("tokens", num_tokens)
        self._take("tokens", num_tokens)

    def give_back(self, num_tokens: int) -> None:
        """Uncount the tokens of a prompt that is not run."""
        self._take("tokens", -num_tokens)

    def take_reply(self, num_tokens: int) -> None:
        self._take("tokens", num_tokens)

    def headers(self) -> dict[str, str]:
        """The x-ratelimit headers: the limits, what is left, and the time until all of it is back."""
        headers = {}
        for kind, bucket in self._buckets.items():
            headers[f"x-ratelimit-limit-{kind}"] = str(bucket.per_minute)
            headers[f"x-ratelimit-remaining-{kind}"] = str(max(int(bucket.level), 0))
            headers[f"x-ratelimit-reset-{kind}"] = duration(bucket.seconds_until(bucket.per_minute))
        return headers

    def _take(self, kind: str, amount: int) -> None:
        if kind in self._buckets:
            self._buckets[kind].take(amount)

    def _require(self, kind: str, amount: int) -> None:
        bucket = self._buckets.get(kind)
        seconds = 0.0 if bucket is None else bucket.seconds_until(amount)
        if bucket is not None and seconds > 0:
            limit = f"{bucket.per_minute} {kind} a minute"
            message = f"This API key's limit of {limit} is reached; try again in {duration(seconds)}."
            raise ApiError(429, message, None, "rate_limit_exceeded", math.ceil(seconds))


def duration(seconds: float) -> str:
    """A duration in OpenAI's notation: 12ms, 8.64s, 6m0s."""
    if seconds < 1:
        return f"{math.ceil(seconds * 1000)}ms"
    minutes, rest = divmod(math.ceil(seconds * 100) / 100, MINUTE)
    return f"{int(minutes)}m{rest:.4g}s" if minutes else f"{rest:.4g}s"


class RateLimitMiddleware:
    """Counts a request against its key's limits, or answers 429. `allowance_of` returns what the key has left."""

    def __init__(self, app: ASGIApp, on_error: OnError) -> None:
        self._app = app
        self._on_error = on_error
        self._allowances: dict[str, Allowance] = {}  # by tenant, so at most one for each key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_counted = scope["type"] == "http" and scope["method"] == "POST" and scope["path"] in PATHS
        allowance = self._allowance_of(scope["state"]["caller"]) if is_counted else None
        if allowance is None:
            await self._app(scope, receive, send)
            return
        scope["state"]["allowance"] = allowance

        async def send_with_limits(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(allowance.headers())
            await send(message)

        try:
            allowance.take_request()
        except ApiError as error:
            self._on_error(error)
            await error.response(scope)(scope, receive, send_with_limits)
            return
        await self._app(scope, receive, send_with_limits)

    def _allowance_of(self, caller: Caller) -> Allowance | None:
        """The key's allowance, None where it has no limits; a new one where its limits have changed."""
        terms = caller.terms
        if terms.requests_per_minute is None and terms.tokens_per_minute is None:
            return None
        allowance = self._allowances.get(caller.tenant)
        if allowance is None or allowance.terms != terms:
            self._allowances[caller.tenant] = allowance = Allowance(terms)
        return allowance


def allowance_of(connection: HTTPConnection) -> Allowance | None:
    """What the request's key has left; None where it has no limits."""
    allowance = getattr(connection.state, "allowance", None)
    assert allowance is None or isinstance(allowance, Allowance)
    return allowance
