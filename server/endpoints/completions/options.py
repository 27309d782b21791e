"""Turns a completion request into generation options."""

from __future__ import annotations

from server.config import ServerSettings
from server.generation.options import GenerationOptions
from server.grammars.constraint import constraint_of
from server.http.errors import invalid, require_at_most
from server.prompts.encoding import EncodedPrompt, PromptReading, encode_prompts, fill_in_the_middle
from server.prompts.served_model import ServedModel
from server.schemas.completions import CompletionRequest

DEFAULT_MAX_TOKENS = 16


def completion_options(body: CompletionRequest, model: ServedModel) -> GenerationOptions:
    """The options of a completion. Raises ApiError for fields that contradict each other or exceed the settings."""
    _check(body, model.settings)
    num_choices = body.best_of or body.n
    is_ranked = num_choices > body.n
    constraint = constraint_of(body, model.settings)
    return GenerationOptions(
        id_prefix="cmpl-",
        prompts=_prompts(body, model),
        max_tokens=body.max_tokens,
        default_max_tokens=model.settings.default_max_tokens or DEFAULT_MAX_TOKENS,
        num_choices=num_choices,
        echo=body.echo,
        logprobs=0 if is_ranked and body.logprobs is None else body.logprobs,
        prompt_logprobs=_prompt_logprobs(body),
        grammar=None if constraint is None else constraint.grammar,
        names={} if constraint is None else {"grammar": constraint.param},
    )


def _check(body: CompletionRequest, settings: ServerSettings) -> None:
    require_at_most(len(body.prompt), settings.max_prompts, "prompt")
    require_at_most(body.best_of or 1, settings.max_choices, "best_of")
    require_at_most(body.logprobs or 0, settings.max_logprobs, "logprobs")
    if body.best_of is not None and body.best_of < body.n:
        raise invalid("best_of must not be smaller than n.", "best_of")
    if body.best_of is not None and body.best_of > body.n and body.stream:
        raise invalid("best_of cannot be streamed: which choices are best is known at the end.", "best_of")
    if body.max_tokens == 0 and not body.echo and body.prompt_logprobs is None:
        raise invalid("max_tokens must be 1 at least, unless the prompt is echoed.", "max_tokens")
    if body.suffix and body.echo:
        raise invalid("echo cannot be given together with suffix.", "echo")
    if body.suffix and body.truncate_prompt_tokens is not None:
        raise invalid("A prompt with a suffix cannot be shortened.", "truncate_prompt_tokens")


def _prompt_logprobs(body: CompletionRequest) -> int | None:
    """How many likely tokens to report at each prompt token: with echo at least as many as for the reply's tokens."""
    echoed = body.logprobs if body.echo else None
    asked = [count for count in (body.prompt_logprobs, echoed) if count is not None]
    return max(asked) if asked else None


def _prompts(body: CompletionRequest, model: ServedModel) -> list[EncodedPrompt]:
    is_cut = body.truncate_prompt_tokens is not None
    reading = PromptReading(body.add_special_tokens, body.parse_special, is_cut, not body.skip_special_tokens)
    least = max(body.max_tokens or 1, 1) if model.settings.strict_length else 1
    prompts = encode_prompts(model, body.prompt, reading, least)
    if not body.suffix:
        return prompts
    return [fill_in_the_middle(model, prompt, body.suffix, reading) for prompt in prompts]
