"""From a checked body to the requests the engine runs: one per prompt and choice, with its own seed.

Owns the numbering of choices (prompt by prompt, n of each), seeds, and limits that only the loaded model or the
settings can tell. Knows nothing of HTTP or of replies.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence

from decoding.messages import Ready, Sampling, Speculation, Submit
from server.config import ServerSettings
from server.errors import ApiError, invalid
from server.events import ChoicePlan
from server.prompts import EncodedPrompt, reply_room
from server.schemas import CompletionRequest, SpeculationOptions

DEFAULT_MAX_TOKENS = 16
SMALLEST_TOP_P = 1e-9  # OpenAI's top_p=0: only the likeliest token


def choice_seed(seed: int | None, prompt_number: int, choice_number: int) -> int:
    """The 64-bit seed of one choice.

    Without a seed every choice is random. With one, the first choice of the first prompt uses the seed itself
    (negative ones modulo 2**64) and the others blake2b of (seed, prompt number, choice number), so that choices
    differ from each other and each is the same every time, whatever n is.
    """
    if seed is None:
        return secrets.randbits(64)
    seed %= 2**64
    if prompt_number == choice_number == 0:
        return seed
    words = (seed, prompt_number, choice_number)
    data = b"".join(word.to_bytes(8, "little") for word in words)
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")


def check_limits(body: CompletionRequest, settings: ServerSettings, ready: Ready) -> None:
    """Raise ApiError for what is beyond this server's settings or the loaded model."""
    limits = (
        ("n", body.n, settings.max_choices),
        ("prompt", len(body.prompt), settings.max_prompts),
        ("stop", len(body.stop), settings.max_stop_strings),
    )
    for param, count, limit in limits:
        if count > limit:
            raise invalid(f"{param}: {count} is above this server's limit of {limit}.", param, "above_limit")
    choices, room = body.n * len(body.prompt), settings.max_running + settings.max_waiting
    if choices > room:
        raise invalid(f"{choices} choices in one request; this server takes {room} at most.", "n", "above_limit")
    outside = [token_id for token_id in body.stop_token_ids if not 0 <= token_id < ready.vocab_size]
    if outside:
        message = f"Token id {outside[0]} is outside the vocabulary, which has {ready.vocab_size} tokens."
        raise invalid(message, "stop_token_ids", "token_out_of_vocabulary")
    options = body.speculation
    if options.method != "auto" and options.method not in ready.methods:
        known = ", ".join(sorted({"auto", *ready.methods}))
        message = f"Unknown speculation method '{options.method}'; this server has {known}."
        raise invalid(message, "speculation.method", "unknown_method")
    if options.max_nodes is not None and options.max_nodes > ready.max_nodes:
        message = f"speculation.max_nodes: {options.max_nodes} is above this server's limit of {ready.max_nodes}."
        raise invalid(message, "speculation.max_nodes", "above_limit")


def plan_choices(
    body: CompletionRequest,
    prompts: Sequence[EncodedPrompt],
    ready: Ready,
    call_id: str,
    session_id: str,
) -> list[ChoicePlan]:
    """Choice `i` of prompt `j` has index `j * n + i`. Raises ApiError where a prompt is too long."""
    speculation = _speculation(body.speculation)
    plans: list[ChoicePlan] = []
    for prompt_number, prompt in enumerate(prompts):
        max_tokens = reply_room(len(prompt.token_ids), body.max_tokens, DEFAULT_MAX_TOKENS, ready.max_model_len)
        if body.min_tokens > max_tokens:
            message = f"min_tokens is {body.min_tokens}, but the reply may only have {max_tokens} tokens."
            raise ApiError(400, message, "min_tokens")
        for choice_number in range(body.n):
            seed = choice_seed(body.seed, prompt_number, choice_number)
            request = Submit(
                request_id=f"{call_id}-{len(plans)}",
                prompt=prompt.token_ids,
                sampling=_sampling(body, max_tokens, seed),
                speculation=speculation,
                session_id=session_id,
            )
            plans.append(ChoicePlan(request=request, echo=prompt.text if body.echo else "", stops=body.stop))
    return plans


def _sampling(body: CompletionRequest, max_tokens: int, seed: int) -> Sampling:
    return Sampling(
        max_tokens=max_tokens,
        temperature=body.temperature,
        top_k=max(body.top_k, 0),
        top_p=body.top_p or SMALLEST_TOP_P,
        min_p=body.min_p,
        seed=seed,
        min_tokens=body.min_tokens,
        stop_token_ids=body.stop_token_ids,
        ignore_eos=body.ignore_eos,
    )


def _speculation(options: SpeculationOptions) -> Speculation:
    return Speculation(
        method=options.method,
        max_nodes=options.max_nodes,
        max_depth=options.max_depth,
        without=options.without,
        branching=options.branching,
        min_probability=options.min_probability,
        consensus=options.consensus,
        candidates=options.candidates,
        verification=options.verification,
    )
