"""What one worker is asked for, and what it may have died of."""

import msgspec

from decoding.core.sampling_params import SamplingParams
from decoding.core.speculation_params import SpeculationParams
from decoding.worker.messages import Submit
from server.engine_client.open_requests import Ticket
from server.engine_client.replies import Replies
from server.engine_client.worker_requests import MOST_DEATHS, WorkerRequests


def ticket(number: int, **fields: str) -> Ticket:
    request = Submit(
        request_id=str(number),
        prompt=[1],
        sampling=SamplingParams(max_tokens=1),
        speculation=SpeculationParams(),
    )
    return Ticket(msgspec.structs.replace(request, **fields), Replies([str(number)], lambda _: None), 0)


def ended_by_death(requests: WorkerRequests, max_running: int) -> set[str]:
    """Ids of those that end as the process dies."""
    ends = requests.note_death(max_running, "died")
    for each, _ in ends:
        requests.drop(each)
    return {each.request.request_id for each, _ in ends}


def test_a_request_that_kills_workers_is_found_though_it_went_before_a_flood_that_came_first() -> None:
    requests = WorkerRequests(0)
    flood = [ticket(number, call_id="flood") for number in range(20)]
    for each in [*flood, ticket(20, tenant="b"), *(ticket(number, tenant="c") for number in range(21, 41))]:
        requests.add(each)
    for _ in range(MOST_DEATHS):
        requests.due()
        assert not ended_by_death(requests, 6)
    tried, ended = set(), set()
    while len(asked := requests.due()) == 1:
        tried.add(asked[0].request_id)
        ended |= ended_by_death(requests, 6)
    assert tried == ended == {"0", "1", "2", "20", "21", "22"}


def test_another_worker_gets_what_was_not_asked_for_but_for_what_may_kill_it() -> None:
    requests = WorkerRequests(3)
    for number in range(4):
        requests.add(ticket(number))
    assert {each.worker for each in requests} == {3}
    requests.due()
    assert requests.release(with_suspects=False) == [], "the process runs them"
    assert not ended_by_death(requests, 2)
    requests.add(ticket(4))
    requests.due()
    assert not ended_by_death(requests, 2)
    assert {each.request.request_id for each in requests.release(with_suspects=False)} == {"2", "3", "4"}
    assert [asked.request_id for asked in requests.due()] == ["0"]
    assert requests.has_trial
    assert [each.request.request_id for each in requests.release(with_suspects=True)] == ["1"]
