"""From a checked body and an endpoint's options to a generation call: the one way for every endpoint."""

from __future__ import annotations

import time
import uuid

from server.generation.call import GenerationCall
from server.generation.limits import check_limits
from server.generation.options import GenerationOptions
from server.generation.plan import plan_choices
from server.http.errors import naming
from server.http.session import SessionKey
from server.prompts.served_model import ServedModel
from server.schemas.generation import GenerationRequest


def prepare(
    body: GenerationRequest, options: GenerationOptions, model: ServedModel, session: SessionKey
) -> GenerationCall:
    """Raises ApiError, in the body's own names, for what cannot be served."""
    call_id = f"{options.id_prefix}-{uuid.uuid4().hex}"
    with naming(options.names):
        check_limits(body, options, model)
        plans = plan_choices(body, options, model, session, call_id)
    return GenerationCall(
        id=call_id,
        created=int(time.time()),
        model=model.name,
        fingerprint=model.engine.fingerprint,
        prompt_tokens=sum(len(prompt.token_ids) for prompt in options.prompts),
        num_choices=options.num_choices,
        tokenizer=model.tokenizer,
        is_streamed=body.stream,
        plans=plans,
        names=options.names,
    )
