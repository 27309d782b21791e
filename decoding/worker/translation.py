"""What messages mean to the engine, and what the engine is in a message: requests, questions about sessions, Ready."""

from __future__ import annotations

import logging

import numpy as np
from numpy.typing import NDArray

from decoding.cache.kv_format import name_of
from decoding.config import EngineConfig
from decoding.core.request import Request
from decoding.engine.engine import Engine
from decoding.errors import RequestRejected
from decoding.stores.session_store import SessionStore
from decoding.worker import messages
from decoding.worker.calls import Submit

logger = logging.getLogger("gander.worker")


def request_of(submit: Submit, eos_token_ids: frozenset[int]) -> Request:
    """The engine's request for a message. Raises RequestRejected for an empty prompt, and for ids of no vocabulary."""
    if not submit.prompt:
        raise RequestRejected("prompt is empty", param="prompt")
    submit.sampling.validate()
    return Request(
        id=submit.request_id,
        prompt=_token_ids("prompt", submit.prompt),
        sampling=submit.sampling,
        speculation=submit.speculation,
        eos_token_ids=eos_token_ids,
        tenant=submit.tenant,
        cache_salt=submit.cache_salt,
        session_id=submit.session_id,
        call_id=submit.call_id,
        weight=submit.weight,
        priority=submit.priority,
        pooling=submit.pooling,
        prediction=_token_ids("prediction", submit.prediction),
        resumed=_token_ids("resumed", submit.resumed),
        pictures=tuple(submit.pictures),
    )


def _token_ids(field: str, ids: list[int]) -> NDArray[np.int32]:
    try:
        return np.array(ids, np.int32)
    except OverflowError:
        raise RequestRejected(f"{field} holds token ids that no vocabulary has", param=field) from None


def session_answer(
    sessions: SessionStore, question: messages.SessionQuestion, vocab_size: int
) -> messages.SessionAnswer:
    match question:
        case messages.ListSessions():
            return messages.Sessions(id=question.id, sessions=sessions.list(question.tenant))
        case messages.DeleteSession():
            found = sessions.delete(question.tenant, question.session_id)
            return messages.SessionDeleted(id=question.id, found=found)
        case messages.CopySession():
            state = sessions.copy(question.tenant, question.session_id)
            return messages.SessionCopied(id=question.id, state=state)
        case messages.RestoreSession():
            return messages.SessionRestored(id=question.id, problem=_restore(sessions, question, vocab_size))
        case messages.HandOver():
            return messages.HandedOver(id=question.id)


def _restore(sessions: SessionStore, question: messages.RestoreSession, vocab_size: int) -> str | None:
    """Take over a session. Returns what is wrong with it, if anything."""
    try:
        sessions.restore(question.state, vocab_size, question.replaces)
    except ValueError as error:
        logger.warning("What another process remembered of a session is not taken over: %s.", error)
        return str(error)
    return None


def ready_message(engine: Engine, config: EngineConfig) -> messages.Ready:
    model = engine.model
    return messages.Ready(
        model=config.model,
        max_model_len=engine.room.max_model_len,
        model_context_len=model.max_model_len,
        context_note=engine.room.note,
        max_running=engine.limits.max_running,
        max_batch_rows=engine.limits.max_batch_rows,
        kv_slots=engine.room.num_slots,
        expected_bytes=engine.expected_bytes,
        state_bytes=model.state_bytes,
        kv_dtype=name_of(model.kv_dtype),
        vocab_size=model.vocab_size,
        eos_token_ids=sorted(model.eos_token_ids),
        methods=engine.methods,
        max_nodes=config.max_nodes,
        dtype=str(model.dtype).removeprefix("torch."),
        weights=model.weights,
        device=str(model.device),
        attention=model.attention,
        is_exact=engine.is_exact,
        exact_rows=engine.exact_rows,
        load_seconds=engine.load_seconds,
        parameters=model.num_parameters,
        blindness=model.blindness,
        fingerprint=model.fingerprint,
        identity=model.identity,
        embedding_len=engine.embedding_len,
    )
