"""What one worker is asked for, and what it may have died of."""

from decoding.core.sampling_params import SamplingParams
from decoding.core.speculation_params import SpeculationParams
from decoding.worker.calls import Submit
from server.engine_client.open_requests import Ticket
from server.engine_client.replies import Replies
from server.engine_client.worker_requests import MOST_DEATHS, WorkerRequests


def ticket(number: int) -> Ticket:
    request = Submit(
        request_id=str(number),
        prompt=[1],
        sampling=SamplingParams(max_tokens=1),
        speculation=SpeculationParams(),
    )
    return Ticket(request, Replies([str(number)], lambda _: None), 0)


def ended_by_death(requests: WorkerRequests, *running: str) -> set[str]:
    """Ids of those that end as the process dies, which was at these."""
    ends = requests.note_death(running, "died")
    for each, _ in ends:
        requests.drop(each)
    return {each.request.request_id for each, _ in ends}


def requests_of(num_requests: int) -> WorkerRequests:
    requests = WorkerRequests(3)
    for number in range(num_requests):
        requests.add(ticket(number))
    return requests


def test_a_request_that_kills_workers_is_found_among_those_that_ran_whoever_waited() -> None:
    requests = requests_of(40)
    for _ in range(MOST_DEATHS):
        assert len(requests.due()) == 40
        assert not ended_by_death(requests, "7", "30", "39")
    tried, ended = [], set()
    while len(asked := requests.due()) == 1:
        tried.append(asked[0].request_id)
        ended |= ended_by_death(requests, tried[-1])
    assert tried == ["7", "30", "39"]
    assert ended == {"7", "30", "39"}
    assert len(asked) == 37


def test_a_death_while_nothing_ran_is_no_requests_fault() -> None:
    requests = requests_of(1)
    for _ in range(3 * MOST_DEATHS):
        assert len(requests.due()) == 1
        assert not ended_by_death(requests)
    for deaths in range(1, MOST_DEATHS + 1):
        requests.due()
        assert ended_by_death(requests, "0") == ({"0"} if deaths == MOST_DEATHS else set())


def test_a_request_on_trial_ends_if_it_ran_and_is_tried_again_if_it_did_not() -> None:
    requests = requests_of(2)
    for _ in range(MOST_DEATHS):
        requests.due()
        assert not ended_by_death(requests, "0", "1")
    for died_of, ends in ((), set()), (("0",), {"0"}):
        assert [asked.request_id for asked in requests.due()] == ["0"]
        assert requests.has_trial
        assert ended_by_death(requests, *died_of) == ends
    assert [asked.request_id for asked in requests.due()] == ["1"]


def test_another_worker_gets_what_was_not_asked_for_but_for_what_may_kill_it() -> None:
    requests = requests_of(4)
    assert {each.worker for each in requests} == {3}
    requests.due()
    assert requests.release(with_suspects=False) == [], "the process runs them"
    assert not ended_by_death(requests, "0", "1")
    requests.add(ticket(4))
    requests.due()
    assert not ended_by_death(requests, "0", "1")
    assert {each.request.request_id for each in requests.release(with_suspects=False)} == {"2", "3", "4"}
    assert [asked.request_id for asked in requests.due()] == ["0"]
    assert requests.has_trial
    assert [each.request.request_id for each in requests.release(with_suspects=True)] == ["1"]
