"""From a checked body to the requests the engine runs: one per prompt and choice, with its own seed.

Owns the numbering of choices (prompt by prompt, n of each) and their seeds. Knows nothing of HTTP or of replies.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from decoding.core.grammar import Grammar
from decoding.core.sampling_params import SamplingParams
from decoding.core.speculation_params import SpeculationParams
from decoding.worker.messages import Ready, Submit
from server.generation.choice import ChoicePlan
from server.http.errors import ApiError
from server.parsing.parts import Parser, PlainParser
from server.prompts.encoding import EncodedPrompt, reply_room
from server.prompts.tokenizer import Tokenizer
from server.schemas.generation import GenerationRequest, SpeculationOptions

SMALLEST_TOP_P = 1e-9  # OpenAI's top_p=0: only the likeliest token


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What an endpoint has made of its own fields. Lengths are in tokens; default_max_tokens None: all the room.

    num_choices: generated for each prompt; make_parser: of one reply; the session belongs to `tenant`.
    """

    call_id: str
    tenant: str
    session_id: str
    max_tokens: int | None
    default_max_tokens: int | None = None
    num_choices: int = 1
    echo: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    grammar: Grammar | None = None
    bad_words: Sequence[Sequence[int]] = ()
    prediction: Sequence[int] = ()
    make_parser: Callable[[], Parser] = PlainParser
    shows_special_tokens: bool = False


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


def plan_choices(
    body: GenerationRequest, prompts: Sequence[EncodedPrompt], order: Order, ready: Ready
) -> list[ChoicePlan]:
    """Choice `i` of prompt `j` has index `j * num_choices + i`. Raises ApiError where a prompt is too long."""
    sampling, speculation = _sampling(body, order), _speculation(body.speculation)
    plans: list[ChoicePlan] = []
    for prompt_number, prompt in enumerate(prompts):
        asked = max(order.max_tokens, 1) if order.max_tokens is not None else None
        max_tokens = reply_room(len(prompt.token_ids), asked, order.default_max_tokens, ready.max_model_len)
        if body.min_tokens > max_tokens:
            message = f"min_tokens is {body.min_tokens}, but the reply may only have {max_tokens} tokens."
            raise ApiError(400, message, "min_tokens")
        for choice_number in range(order.num_choices):
            seed = choice_seed(body.seed, prompt_number, choice_number)
            request = Submit(
                request_id=f"{order.call_id}-{len(plans)}",
                prompt=prompt.token_ids,
                sampling=replace(sampling, max_tokens=max_tokens, seed=seed),
                speculation=speculation,
                tenant=order.tenant,
                session_id=order.session_id,
                prediction=list(order.prediction),
            )
            plans.append(
                ChoicePlan(
                    request=request,
                    echo=prompt.text if order.echo else "",
                    stops=body.stop,
                    parser=order.make_parser(),
                    shows_special_tokens=order.shows_special_tokens,
                    is_silent=order.max_tokens == 0,
                )
            )
    return plans


def bad_word_ids(tokenizer: Tokenizer, words: Sequence[str]) -> list[list[int]]:
    """Each word's tokens, at the start of text and after a space, for both are spelled differently."""
    spellings = (tokenizer.encode(text, False) for word in words for text in (word, f" {word.lstrip()}"))
    return [list(token_ids) for token_ids in dict.fromkeys(tuple(ids) for ids in spellings) if token_ids]


def _sampling(body: GenerationRequest, order: Order) -> SamplingParams:
    """All but the length and the seed, which differ between choices."""
    return SamplingParams(
        max_tokens=1,
        temperature=body.temperature,
        top_k=max(body.top_k, 0),
        top_p=body.top_p or SMALLEST_TOP_P,
        min_p=body.min_p,
        min_tokens=body.min_tokens,
        stop_token_ids=tuple(body.stop_token_ids),
        ignore_eos=body.ignore_eos,
        presence_penalty=body.presence_penalty,
        frequency_penalty=body.frequency_penalty,
        repetition_penalty=body.repetition_penalty,
        logit_bias=body.logit_bias,
        bad_words=tuple(map(tuple, order.bad_words)),
        allowed_token_ids=None if body.allowed_token_ids is None else tuple(body.allowed_token_ids),
        logprobs=0 if body.speculation.trace and order.logprobs is None else order.logprobs,
        prompt_logprobs=order.prompt_logprobs,
        grammar=order.grammar,
    )


def _speculation(options: SpeculationOptions) -> SpeculationParams:
    return SpeculationParams(
        method=options.method,
        max_nodes=options.max_nodes,
        max_depth=options.max_depth,
        without=frozenset(options.without),
        branching=options.branching,
        min_probability=options.min_probability,
        consensus=options.consensus,
        candidates=options.candidates,
        verification=options.verification,
        trace=_trace(options.trace),
    )


def _trace(asked: bool | str) -> str | None:
    return asked if isinstance(asked, str) else "steps" if asked else None
