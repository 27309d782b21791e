"""POST /v1/completions: from a checked body to plans."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import Response

from server.endpoints.completions.serializer import CompletionShape
from server.generation.calls import Call, answer, new_id, now, session_of
from server.generation.constraint import grammar_of
from server.generation.limits import check_choices, check_limits, check_reply_tokens, require_at_most
from server.generation.plan import Order, bad_word_ids, plan_choices
from server.http.errors import invalid, naming
from server.http.openapi import generation_replies
from server.prompts.encoding import EncodedPrompt, encode_prompts, encode_text, fill_in_the_middle
from server.prompts.tokenizer import Tokenizer
from server.schemas.completions import Completion, CompletionRequest
from server.service import Service, service_of

router = APIRouter()

DEFAULT_MAX_TOKENS = 16


@router.post("/v1/completions", response_model=Completion, responses=generation_replies("Completion"))
async def create_completion(body: CompletionRequest, request: Request) -> Response:
    """Continue a prompt, or several."""
    service = service_of(request)
    tokenizer, ready = service.require_ready()
    model = service.require_model(body.model)
    check_limits(body, len(body.prompt), service.settings, ready)
    _check(body, service)
    tenant, session_id = session_of(request, body.session_id)
    prompts = await _prompts(body, tokenizer, ready.vocab_size)
    num_generated = body.best_of or body.n
    is_ranked = num_generated > body.n
    found = grammar_of(body, service.settings)
    order = Order(
        call_id=new_id("cmpl"),
        tenant=tenant,
        session_id=session_id,
        max_tokens=body.max_tokens,
        default_max_tokens=DEFAULT_MAX_TOKENS,
        num_choices=num_generated,
        echo=body.echo,
        logprobs=0 if is_ranked and body.logprobs is None else body.logprobs,
        prompt_logprobs=_prompt_logprobs(body),
        grammar=None if found is None else found[1],
        bad_words=bad_word_ids(tokenizer, body.bad_words),
        prediction=await _prediction(body, tokenizer),
    )
    plans = plan_choices(body, prompts, order, ready)
    call = Call(
        id=order.call_id,
        created=now(),
        model=model,
        fingerprint=ready.fingerprint,
        prompt_tokens=sum(len(prompt.token_ids) for prompt in prompts),
        tokenizer=tokenizer,
        is_streamed=body.stream,
    )
    with naming({} if found is None else {"grammar": found[0]}):
        return await answer(call, plans, CompletionShape(call, body, plans, num_generated), request, service)


def _check(body: CompletionRequest, service: Service) -> None:
    settings = service.settings
    require_at_most(body.best_of or 1, settings.max_choices, "best_of")
    require_at_most(body.logprobs or 0, settings.max_logprobs, "logprobs")
    check_reply_tokens(body.max_tokens, settings, "max_tokens")
    check_choices((body.best_of or body.n) * len(body.prompt), settings)
    if body.best_of is not None and body.best_of < body.n:
        raise invalid("best_of must not be smaller than n.", "best_of")
    if body.best_of is not None and body.best_of > body.n and body.stream:
        raise invalid("best_of cannot be streamed: which choices are best is known at the end.", "best_of")
    if body.max_tokens == 0 and not body.echo and body.prompt_logprobs is None:
        raise invalid("max_tokens must be 1 at least, unless the prompt is echoed.", "max_tokens")
    if body.suffix and body.echo:
        raise invalid("echo cannot be given together with suffix.", "echo")


def _prompt_logprobs(body: CompletionRequest) -> int | None:
    """echo repeats the prompt with as many likely tokens as the reply has."""
    echoed = body.logprobs if body.echo else None
    asked = [count for count in (body.prompt_logprobs, echoed) if count is not None]
    return max(asked) if asked else None


async def _prompts(body: CompletionRequest, tokenizer: Tokenizer, vocab_size: int) -> list[EncodedPrompt]:
    prompts = await encode_prompts(tokenizer, body.prompt, vocab_size)
    if not body.suffix:
        return prompts
    return [await fill_in_the_middle(tokenizer, prompt, body.suffix) for prompt in prompts]


async def _prediction(body: CompletionRequest, tokenizer: Tokenizer) -> list[int]:
    if body.prediction is None:
        return []
    return await encode_text(tokenizer, body.prediction.content, "prediction", add_special_tokens=False)
