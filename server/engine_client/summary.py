"""Several workers described as one: their status, and what they serve. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

import msgspec

from decoding.worker.messages import Ready
from server.engine_client.status import EngineStatus, State

# The first of these states that some worker has is the state of all: the worst one BEFORE every worker has served once,
# the best one AFTER.
BEFORE: tuple[State, ...] = ("failed", "draining", "restarting", "loading", "silent", "ready")
AFTER: tuple[State, ...] = ("draining", "ready", "silent", "restarting", "loading", "failed")


def status_of(workers: Sequence[EngineStatus], have_all_served: bool) -> EngineStatus:
    """The status of all workers. have_all_served says whether each has served once since the server started."""
    if len(workers) == 1:
        return workers[0]
    order = AFTER if have_all_served else BEFORE
    speaker = min(range(len(workers)), key=lambda number: order.index(workers[number].state))
    status = workers[speaker]
    if status.state == "ready":
        num_ready = sum(worker.state == "ready" for worker in workers)
        sentence = f"{status.sentence} with {num_ready} of {len(workers)} workers"
    else:
        sentence = f"worker {speaker} of {len(workers)}: {status.sentence}"
    return replace(
        status,
        sentence=sentence,
        fraction=sum(worker.fraction for worker in workers) / len(workers),
        compiling=tuple(dict.fromkeys(chain.from_iterable(worker.compiling for worker in workers))),
        restarts=sum(worker.restarts for worker in workers),
        last_error=next((worker.last_error for worker in workers if worker.last_error is not None), None),
    )


def ready_of(workers: Sequence[Ready]) -> Ready | None:
    """What these workers serve together, None where there is none. Room and places are added up, and a request must fit
    each worker. Where they compute in different ways the fingerprint names all of these."""
    if len(workers) <= 1:
        return workers[0] if workers else None
    narrowest = min(workers, key=lambda worker: worker.max_model_len)
    return msgspec.structs.replace(
        narrowest,
        max_running=sum(worker.max_running for worker in workers),
        kv_slots=sum(worker.kv_slots for worker in workers),
        expected_bytes=sum(worker.expected_bytes for worker in workers),
        is_exact=all(worker.is_exact for worker in workers),
        exact_rows=min(worker.exact_rows for worker in workers),
        inexact_reason=next((worker.inexact_reason for worker in workers if worker.inexact_reason is not None), None),
        fingerprint="+".join(sorted({worker.fingerprint for worker in workers})),
    )
