"""How long a reader waits for news, by a clock of the test's own."""

from __future__ import annotations

import asyncio

from decoding.core.events import Finished, PromptProgress, Tokens
from decoding.core.request import FinishReason
from decoding.core.sampling_params import SamplingParams
from decoding.core.speculation_params import SpeculationParams
from decoding.core.stats import RequestStats
from decoding.worker.calls import Submit
from server.engine_client.open_requests import OpenRequests, Ticket
from server.engine_client.replies import PromptRun, Replies
from tests.server.engine_client.jumping import run

PATIENCE = 15.0
RUN = PromptRun(total=100, cached=0, processed=10, seconds=0.0)
TOKENS = Tokens(request_id="one", token_ids=[1])
FINISHED = Finished(request_id="one", reason=FinishReason.LENGTH, stats=RequestStats(prompt_tokens=100))


def new_replies(*request_ids: str) -> Replies:
    return Replies(request_ids or ["one"], lambda _: None, PATIENCE)


def test_a_reader_waits_for_a_second_at_most_while_a_prompt_runs() -> None:
    async def test() -> None:
        replies, loop = new_replies(), asyncio.get_running_loop()
        loop.call_at(20, replies.put_progress, 0, RUN)
        loop.call_at(22.5, replies.put_tokens, 0, TOKENS)
        woken = []
        while not woken or woken[-1] < 50:
            news = await replies.read()
            woken.append(round(loop.time(), 3))
            assert bool(news) == (woken[-1] == 22.5)
            assert dict(replies.prompts) == ({0: RUN} if 20 <= woken[-1] < 22.5 else {})
        assert woken == [15, 20, 21, 22, 22.5, 37.5, 52.5], "it had waited for 5 seconds when the prompt began"
        replies.close()

    run(test())


def test_a_prompt_that_runs_for_less_than_a_second_wakes_nobody() -> None:
    async def test() -> None:
        replies, loop = new_replies(), asyncio.get_running_loop()
        for tenth in range(1, 10):
            loop.call_at(tenth / 10, replies.put_progress, 0, RUN)
        loop.call_at(0.95, replies.put_tokens, 0, TOKENS)
        assert (await replies.read())[0].token_ids == [1]
        assert (loop.time(), dict(replies.prompts)) == (0.95, {})
        replies.close()

    run(test())


def test_a_prompt_is_forgotten_with_its_first_token_its_end_and_its_worker() -> None:
    async def test() -> None:
        replies = new_replies("one", "two", "three", "four")
        for choice in range(4):
            replies.put_progress(choice, RUN)
        replies.put_tokens(0, TOKENS)
        replies.put_end(1, FINISHED)
        replies.drop_progress(2)
        assert list(replies.prompts) == [3]
        replies.put_progress(1, RUN)  # on its way when the request ended
        assert list(replies.prompts) == [3]
        replies.close()
        assert not replies.prompts

    run(test())


def test_the_tokens_that_are_left_are_those_that_no_worker_has_told_of() -> None:
    async def test() -> None:
        requests, ids = OpenRequests(lambda _ticket, _end: None), ["one", "two"]
        replies = new_replies(*ids)
        for choice, request_id in enumerate(ids):
            submit = Submit(
                request_id=request_id,
                prompt=[5] * 100,
                sampling=SamplingParams(max_tokens=1),
                speculation=SpeculationParams(),
            )
            requests.add(Ticket(submit, replies, choice))
        assert requests.num_prompt_tokens_left() == 200
        requests.on_event(PromptProgress(request_id="one", processed=60, cached=16))
        assert requests.num_prompt_tokens_left() == 140
        run = replies.prompts[0]
        assert (run.total, run.cached, run.processed, run.seconds) == (100, 16, 60, 0.0)
        ticket = requests.find("one")
        assert ticket is not None
        ticket.note_death()
        assert (requests.num_prompt_tokens_left(), dict(replies.prompts)) == (200, {})
        requests.on_event(PromptProgress(request_id="one", processed=32, cached=32))
        assert requests.num_prompt_tokens_left() == 168
        requests.on_event(TOKENS)
        assert requests.num_prompt_tokens_left() == 100
        requests.on_event(FINISHED)
        requests.end("two", FINISHED)
        assert requests.num_prompt_tokens_left() == 0
        requests.on_event(PromptProgress(request_id="two", processed=99, cached=0))
        replies.close()

    run(test())
