"""Checks the limits that depend on the settings or the loaded model; a body's schema checks the others.

Every refusal names the field. Fields that only one endpoint has are checked where its options are made.
"""

from __future__ import annotations

from collections.abc import Sequence

from decoding.worker.messages import Ready
from server.config import ServerSettings
from server.generation.choice import ChoicePlan
from server.generation.options import GenerationOptions
from server.http.errors import invalid, require_at_most
from server.prompts.encoding import require_in_vocabulary
from server.prompts.served_model import ServedModel
from server.schemas.generation import GenerationRequest, SpeculationOptions


def check_limits(body: GenerationRequest, options: GenerationOptions, model: ServedModel) -> None:
    """Raises ApiError for values beyond this server's settings or the loaded model."""
    settings, vocab_size = model.settings, model.engine.vocab_size
    require_at_most(body.n, settings.max_choices, "n")
    require_at_most(len(body.stop), settings.max_stop_strings, "stop")
    require_at_most(len(body.bad_words), settings.max_bad_words, "bad_words")
    require_at_most(len(body.logit_bias), settings.max_biased_tokens, "logit_bias")
    require_at_most(body.prompt_logprobs or 0, settings.max_logprobs, "prompt_logprobs")
    if body.prompt_logprobs is not None and body.stream:
        raise invalid("prompt_logprobs cannot be streamed.", "prompt_logprobs")
    require_in_vocabulary(body.stop_token_ids, vocab_size, "stop_token_ids")
    require_in_vocabulary(list(body.logit_bias), vocab_size, "logit_bias")
    require_in_vocabulary(body.allowed_token_ids or (), vocab_size, "allowed_token_ids")
    if settings.max_reply_tokens is not None:
        require_at_most(options.max_tokens or 0, settings.max_reply_tokens, "max_tokens")
    per_key = settings.max_waiting_per_key
    max_waiting = settings.max_waiting if per_key is None else min(settings.max_waiting, per_key)
    _check_choices(options.num_choices * len(options.prompts), model.engine.max_running + max_waiting)
    _check_speculation(body.speculation, model.engine)


def check_logprobs(plans: Sequence[ChoicePlan], settings: ServerSettings) -> None:
    """Raises ApiError where several choices would tell more log probabilities than a reply may. One choice alone may
    tell those of all its tokens."""
    if len(plans) == 1:
        return
    count = 0
    for request in (plan.request for plan in plans):
        sampling = request.sampling
        if sampling.logprobs is not None:
            count += sampling.max_tokens * (1 + sampling.logprobs)
        if sampling.prompt_logprobs is not None:
            count += len(request.prompt) * (1 + sampling.prompt_logprobs)
    if count > settings.max_reply_logprobs:
        message = (
            f"{count:,} log probabilities asked for, with {len(plans)} choices; this server tells "
            f"{settings.max_reply_logprobs:,} at most. Ask for fewer choices, tokens or alternatives."
        )
        raise invalid(message, "logprobs", "above_limit")


def _check_choices(count: int, most: int) -> None:
    if count > most:
        raise invalid(f"{count} choices in one request; this server takes {most} at most.", "n", "above_limit")


def _check_speculation(options: SpeculationOptions, engine: Ready) -> None:
    if options.method != "auto" and options.method not in engine.methods:
        known = ", ".join(sorted({"auto", *engine.methods}))
        message = f"Unknown speculation method '{options.method}'; this server has {known}."
        raise invalid(message, "speculation.method", "unknown_method")
    if options.max_nodes is not None:
        require_at_most(options.max_nodes, engine.max_nodes, "speculation.max_nodes")
