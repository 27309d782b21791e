"""Makes a generation call of a checked body and an endpoint's options; every endpoint takes this way."""

from __future__ import annotations

import time
import uuid
from dataclasses import replace

from server.generation.call import GenerationCall
from server.generation.limits import check_limits, check_logprobs
from server.generation.options import GenerationOptions
from server.generation.plan import plan_choices
from server.http.errors import ApiError, naming
from server.http.sender import Sender
from server.prompts.encoding import decoded_prompt
from server.prompts.served_model import ServedModel
from server.schemas.generation import GenerationRequest

SHORTEST = 1e-3  # seconds


def prepare(body: GenerationRequest, options: GenerationOptions, model: ServedModel, sender: Sender) -> GenerationCall:
    """The call. Raises an ApiError that names the body's field for what cannot be served."""
    call_id = f"{options.id_prefix}{uuid.uuid4().hex}"
    with naming(options.names):
        check_limits(body, options, model)
        if body.priority and not sender.is_admin:
            raise ApiError(403, "A priority other than 0 is for admin keys.", "priority", "admin_key_required")
        options = _shortened(body, options, model)
        plans = plan_choices(body, options, model, sender, call_id)
        check_logprobs(plans, model.settings)
    return GenerationCall(
        id=call_id,
        created=int(time.time()),
        model=model.name,
        fingerprint=model.engine.fingerprint,
        prompt_tokens=sum(len(prompt.token_ids) for prompt in options.prompts),
        num_choices=options.num_choices,
        tokenizer=model.tokenizer,
        is_streamed=body.stream,
        timeout=_time_left(sender.timeout if body.timeout is None else body.timeout, model.waited),
        chunk_seconds=model.settings.coalesce_ms / 1e3 if body.stream and model.settings.coalesce_ms else None,
        plans=plans,
        names=options.names,
        loose_schema=options.loose_schema,
    )


def _time_left(timeout: float | None, waited: float) -> float | None:
    """What is left of a request's timeout, a moment at least, in which the engine tells that it is over."""
    return timeout if timeout is None or not waited else max(timeout - waited, SHORTEST)


def _shortened(body: GenerationRequest, options: GenerationOptions, model: ServedModel) -> GenerationOptions:
    """Cut every prompt to its last `truncate_prompt_tokens` tokens; -1 keeps as many as leave room for the reply."""
    most = body.truncate_prompt_tokens
    if most is None:
        return options
    if most == -1:
        most = max(model.engine.max_model_len - max(options.max_tokens or 1, 1), 1)
    shortened = [
        decoded_prompt(model, token_ids, not body.skip_special_tokens)
        if len(token_ids := prompt.token_ids[-most:]) < len(prompt.token_ids)
        else prompt
        for prompt in options.prompts
    ]
    return replace(options, prompts=shortened)
