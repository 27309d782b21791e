"""From a checked chat request to its call and plans; chat completions and responses share it."""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import Request

from server.generation.calls import Call, new_id, now, session_of
from server.generation.choice import ChoicePlan
from server.generation.limits import check_choices, check_limits, check_reply_tokens, require_at_most
from server.generation.plan import Order, bad_word_ids, plan_choices
from server.generation.rendered_chat import render_chat
from server.http.errors import ApiError, naming
from server.prompts.encoding import EncodedPrompt, encode_text
from server.schemas.chat import ChatRequest
from server.service import Service


@dataclass(frozen=True, slots=True)
class ChatCall:
    """names: what fields that the engine complains of are called in the body."""

    call: Call
    plans: list[ChoicePlan]
    names: dict[str, str]


async def prepare_chat(body: ChatRequest, request: Request, service: Service, prefix: str) -> ChatCall:
    """prefix: of the call's id. Raises ApiError for what cannot be served."""
    tokenizer, ready = service.require_ready()
    settings = service.settings
    model = service.require_model(body.model)
    max_tokens = body.max_completion_tokens or body.max_tokens
    check_limits(body, 1, settings, ready)
    check_choices(body.n, settings)
    check_reply_tokens(max_tokens, settings, "max_completion_tokens" if body.max_completion_tokens else "max_tokens")
    require_at_most(body.top_logprobs or 0, settings.max_logprobs, "top_logprobs")
    tenant, session_id = session_of(request, body.session_id)
    chat = await render_chat(body, service.chat_template, settings)
    token_ids = await encode_text(tokenizer, chat.text, "messages", add_special_tokens=False)
    if not token_ids:
        raise ApiError(400, "The messages make an empty prompt.", "messages", "empty_prompt")
    prediction = "" if body.prediction is None else body.prediction.content
    order = Order(
        call_id=new_id(prefix),
        tenant=tenant,
        session_id=session_id,
        max_tokens=max_tokens,
        default_max_tokens=settings.max_reply_tokens,
        num_choices=body.n,
        logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        prompt_logprobs=body.prompt_logprobs,
        grammar=None if chat.constraint is None else chat.constraint.grammar,
        bad_words=bad_word_ids(tokenizer, body.bad_words),
        prediction=await encode_text(tokenizer, prediction, "prediction", add_special_tokens=False),
        make_parser=chat.make_parser,
        shows_special_tokens=chat.shows_special_tokens,
    )
    length = "max_completion_tokens" if body.max_completion_tokens else "max_tokens"
    names = {"prompt": "messages", "max_tokens": length}
    if chat.constraint is not None:
        names["grammar"] = chat.constraint.param
    with naming(names):
        plans = plan_choices(body, [EncodedPrompt(token_ids, chat.text)], order, ready)
    call = Call(
        id=order.call_id,
        created=now(),
        model=model,
        fingerprint=ready.fingerprint,
        prompt_tokens=len(token_ids),
        tokenizer=tokenizer,
        is_streamed=body.stream,
    )
    return ChatCall(call, plans, names)
