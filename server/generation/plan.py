"""Turns a checked body into the requests that the engine runs: one for each prompt and choice, with its own seed.

Owns the numbering of choices (prompt by prompt, n of each) and their seeds. Knows nothing of replies.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import replace

from decoding.core.sampling_params import SamplingParams
from decoding.core.speculation_params import SpeculationParams
from decoding.worker.calls import Submit
from server.generation.choice import ChoicePlan
from server.generation.options import GenerationOptions
from server.http.errors import invalid
from server.http.notices import tell
from server.http.sender import Sender
from server.parsing.string_search import SearchTree
from server.prompts.encoding import encode_prediction, require_room
from server.prompts.served_model import ServedModel
from server.prompts.tokenizer import Tokenizer
from server.schemas.generation import GenerationRequest, SpeculationOptions

MOST_BAD_TOKENS = 8192  # of all bad words in both spellings
SMALLEST_TOP_P = 1e-9  # stands for top_p=0, with which OpenAI samples only the likeliest token
SMALLEST_TEMPERATURE = 1e-6  # stands for all smaller ones above 0: logits are divided by it


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
    body: GenerationRequest, options: GenerationOptions, model: ServedModel, sender: Sender, call_id: str
) -> list[ChoicePlan]:
    """The choices to run: choice i of prompt j has index j * num_choices + i. Raises ApiError for a prompt too long."""
    tokenizer = model.tokenizer
    sampling = _sampling(body, options, bad_word_ids(tokenizer, body.bad_words))
    speculation = _speculation(body.speculation)
    prediction = encode_prediction(model, body.prediction)
    stops = SearchTree(body.stop)
    plans: list[ChoicePlan] = []
    for prompt_number, prompt in enumerate(options.prompts):
        max_tokens = _reply_room(len(prompt.token_ids), body, options, model)
        expected = prediction[: model.engine.max_model_len - len(prompt.token_ids)]
        for choice_number in range(options.num_choices):
            seed = choice_seed(body.seed, prompt_number, choice_number)
            request = Submit(
                request_id=f"{call_id}-{len(plans)}",
                prompt=prompt.token_ids,
                sampling=replace(sampling, max_tokens=max_tokens, seed=seed),
                speculation=speculation,
                tenant=sender.tenant,
                cache_salt=body.cache_salt or "",
                session_id=sender.session_id,
                call_id=call_id,
                weight=sender.weight,
                priority=body.priority,
                prediction=expected,
                pictures=list(prompt.pictures),
            )
            plans.append(
                ChoicePlan(
                    request=request,
                    echo=prompt if options.echo else None,
                    stops=stops,
                    parser=options.make_parser(),
                    shows_special_tokens=options.shows_special_tokens or not body.skip_special_tokens,
                    shows_stop=body.include_stop_str_in_output,
                    is_silent=options.max_tokens == 0,
                )
            )
    return plans


def bad_word_ids(tokenizer: Tokenizer, words: Sequence[str]) -> list[list[int]]:
    """The token ids of each word at the start of text and after a space, where tokenizers encode it differently. Raises
    ApiError where they have too many tokens."""
    spellings: dict[tuple[int, ...], None] = {}
    num_tokens = 0
    for text in (text for word in dict.fromkeys(words) for text in (word, f" {word.lstrip()}")):
        ids = tuple(tokenizer.encode(text, False))
        if ids and ids not in spellings:
            spellings[ids] = None
            num_tokens += len(ids)
        if num_tokens > MOST_BAD_TOKENS:
            message = f"bad_words have more than {MOST_BAD_TOKENS:,} tokens, each word spelled alone and after a space."
            raise invalid(message, "bad_words", "above_limit")
    return [list(ids) for ids in spellings]


def _reply_room(prompt_len: int, body: GenerationRequest, options: GenerationOptions, model: ServedModel) -> int:
    """The most tokens a reply may have: what is asked for, as far as the context holds it. Raises ApiError where that
    is nothing, or less than asked on a server that is strict about it."""
    most = model.engine.max_model_len
    room = most - prompt_len
    asked = options.default_max_tokens if options.max_tokens is None else max(options.max_tokens, 1)
    is_strict = model.settings.strict_length and options.max_tokens is not None
    require_room(prompt_len, asked if is_strict and asked is not None else 1, most)
    max_tokens = room if asked is None else min(asked, room)
    if options.max_tokens is not None and max_tokens < options.max_tokens:
        tell(f"The reply may have {max_tokens} tokens, not {options.max_tokens}: the context holds no more.")
    if body.min_tokens > max_tokens:
        message = f"min_tokens is {body.min_tokens}, but the reply may only have {max_tokens} tokens."
        raise invalid(message, "min_tokens")
    return max_tokens


def _sampling(body: GenerationRequest, options: GenerationOptions, bad_words: list[list[int]]) -> SamplingParams:
    """The sampling parameters without length and seed, which differ between choices."""
    return SamplingParams(
        max_tokens=1,
        temperature=max(body.temperature, SMALLEST_TEMPERATURE) if body.temperature else 0.0,
        top_k=max(body.top_k, 0),
        top_p=max(body.top_p, SMALLEST_TOP_P),
        min_p=body.min_p,
        min_tokens=body.min_tokens,
        stop_token_ids=tuple(body.stop_token_ids),
        ignore_eos=body.ignore_eos,
        presence_penalty=body.presence_penalty,
        frequency_penalty=body.frequency_penalty,
        repetition_penalty=body.repetition_penalty,
        logit_bias=body.logit_bias,
        bad_words=tuple(map(tuple, bad_words)),
        allowed_token_ids=None if body.allowed_token_ids is None else tuple(body.allowed_token_ids),
        logprobs=0 if body.speculation.trace and options.logprobs is None else options.logprobs,
        prompt_logprobs=options.prompt_logprobs,
        grammar=options.grammar,
    )


def _speculation(options: SpeculationOptions) -> SpeculationParams:
    return SpeculationParams(
        method=options.method,
        max_nodes=options.max_nodes,
        max_depth=options.max_depth,
        without=frozenset(options.without),
        sources=None if options.sources is None else frozenset(options.sources),
        branching=options.branching,
        min_probability=options.min_probability,
        consensus=options.consensus,
        candidates=options.candidates,
        verification=options.verification,
        trace=_trace(options.trace),
    )


def _trace(asked: bool | str) -> str | None:
    return asked if isinstance(asked, str) else "steps" if asked else None
