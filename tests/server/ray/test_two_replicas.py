"""Ray Serve itself, two replicas of the bundled model: sessions stay, and replies end whatever becomes of a replica."""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import httpx
import pytest

pytest.importorskip("ray", reason="ray is not installed: pip install 'gander[ray]'.")

from deploy.conversation import converse, new_asks
from deploy.local_ray import LocalRay, local_ray
from deploy.try_ray import burst, config, kill_one, replicas_of, streams_of

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]  # Ray's own
MOST = 16  # calls of a replica, and that wait for either


@pytest.fixture(scope="module")
def ray() -> Iterator[LocalRay]:
    written = config(2, 2)
    replicas_of(written).update(max_ongoing_requests=MOST, max_queued_requests=MOST)
    with local_ray() as ray:
        ray.deploy(written)
        yield ray


def run(ray: LocalRay, work: Callable[[httpx.AsyncClient], Coroutine[Any, Any, Any]]) -> Any:
    async def main() -> Any:
        async with httpx.AsyncClient(base_url=ray.url, timeout=300) as client:
            return await work(client)

    return asyncio.run(main())


def test_beyond_what_may_run_and_wait_a_request_is_refused_in_our_own_form(ray: LocalRay) -> None:
    replies = run(ray, lambda client: burst(client, 6 * MOST))
    refused = [reply for reply in replies if reply.status_code != 200]
    assert 0 < len(refused) < len(replies)
    for reply in refused:
        assert (reply.status_code, reply.json()["error"]["code"]) == (429, "queue_full")
        assert int(reply.headers["retry-after"]) > 0


def test_a_replica_killed_amid_streams_leaves_none_open_and_its_sessions_warm_up_at_the_other(ray: LocalRay) -> None:
    asks = new_asks(12, 150)

    async def lengths(client: httpx.AsyncClient, sessions: list[str]) -> list[list[int]]:
        """Of the cached part of each later prompt, in a conversation of each session."""
        talks = await asyncio.gather(
            *(converse(client, n, session, (16, 16, 16)) for n, session in enumerate(sessions))
        )
        assert all(reply.end == "end" for talk in talks for reply in talk)
        return [[reply.cached for reply in talk[1:]] for talk in talks]

    async def work(client: httpx.AsyncClient) -> tuple[Any, ...]:
        sessions = [asked.session for asked in asks]
        before = await lengths(client, sessions)
        async with streams_of(client, asks) as replies:
            kill_one(ray)
        lost = [asked.session for asked, reply in zip(asks, replies, strict=True) if reply.end != "end"]
        return before, Counter(reply.end for reply in replies), await lengths(client, lost)

    before, ends, after = run(ray, work)
    assert all(all(cached) for cached in before), "a session moved"
    assert ends.keys() == {"end", "error event replica_lost"}
    assert all(any(cached) for cached in after), "a session is moved at most once more, to the new replica"
