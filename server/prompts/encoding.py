"""Prompts: encoding what clients send, and refusing what cannot be served.

Knows nothing of sampling or of the worker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from server.http.errors import ApiError, invalid
from server.prompts.special_tokens import MarkedText
from server.prompts.tokenizer import Tokenizer
from server.schemas.completions import Prompt
from server.schemas.generation import Prediction

SHORT_TEXT = 4000  # characters; longer ones are encoded in a thread, so that streams go on

# Token names of models trained to fill in the middle: before the prefix, before the suffix, before the reply.
FILL_IN_THE_MIDDLE = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen coder, CodeGemma
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder, Granite
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),  # SantaCoder
    ("▁<PRE>", "▁<SUF>", "▁<MID>"),  # Code Llama
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),  # DeepSeek coder
)


@dataclass(frozen=True, slots=True)
class EncodedPrompt:
    """text: what the client sent, or the text of the ids it sent."""

    token_ids: list[int]
    text: str


@dataclass(frozen=True, slots=True)
class PromptReading:
    """How the text of a prompt is read, see `Tokenizer.encode`."""

    add_special_tokens: bool = True
    parse_special: bool = True


AS_IT_IS = PromptReading(add_special_tokens=False)


async def encode_prompts(
    tokenizer: Tokenizer, prompts: Sequence[Prompt], vocab_size: int, reading: PromptReading
) -> list[EncodedPrompt]:
    """Raises ApiError naming the prompt at fault."""
    encoded = []
    for number, prompt in enumerate(prompts):
        if isinstance(prompt, str):
            text = prompt
            token_ids = await encode_text(tokenizer, text, "prompt", reading)
        else:
            token_ids = prompt
            require_in_vocabulary(token_ids, vocab_size, "prompt")
            text = tokenizer.decode(token_ids)
        if not token_ids:
            which = "The prompt" if len(prompts) == 1 else f"Prompt {number}"
            raise invalid(f"{which} is empty; it must have at least one token.", "prompt", "empty_prompt")
        encoded.append(EncodedPrompt(token_ids, text))
    return encoded


def require_in_vocabulary(token_ids: Sequence[int], vocab_size: int, param: str) -> None:
    outside = next((token_id for token_id in token_ids if not 0 <= token_id < vocab_size), None)
    if outside is not None:
        message = f"Token id {outside} is outside the vocabulary, which has {vocab_size} tokens."
        raise invalid(message, param, "token_out_of_vocabulary")


async def encode_text(tokenizer: Tokenizer, text: str, param: str, reading: PromptReading = AS_IT_IS) -> list[int]:
    """Raises ApiError for text that is not Unicode."""
    try:
        text.encode()
    except UnicodeEncodeError:
        message = f"{param} has half a surrogate pair, which is not a character."
        raise invalid(message, param, "invalid_unicode") from None
    if len(text) <= SHORT_TEXT:
        return tokenizer.encode(text, reading.add_special_tokens, reading.parse_special)
    return await asyncio.to_thread(tokenizer.encode, text, reading.add_special_tokens, reading.parse_special)


async def encode_rendered(tokenizer: Tokenizer, rendered: MarkedText, add_special_tokens: bool) -> list[int]:
    """The tokens of messages: names of special tokens are the tokens only where the chat template wrote them.

    Raises ApiError for text that is not Unicode.
    """
    token_ids: list[int] = []
    for number, (text, parse_special) in enumerate(tokenizer.special_tokens.pieces(rendered)):
        reading = PromptReading(add_special_tokens and number == 0, parse_special)
        token_ids += await encode_text(tokenizer, text, "messages", reading)
    return token_ids


async def encode_prediction(tokenizer: Tokenizer, prediction: Prediction | None) -> list[int]:
    """Raises ApiError for text that is not Unicode."""
    text = "" if prediction is None else prediction.content
    return await encode_text(tokenizer, text, "prediction")


async def fill_in_the_middle(
    tokenizer: Tokenizer, prompt: EncodedPrompt, suffix: str, reading: PromptReading
) -> EncodedPrompt:
    """A prompt that asks for the text between the prompt's and `suffix`. Raises ApiError if the model knows none."""
    for names in FILL_IN_THE_MIDDLE:
        marks = [tokenizer.id_of(name) for name in names]
        if None not in marks:
            break
    else:
        message = "suffix: this model has no fill-in-the-middle tokens."
        raise invalid(message, "suffix", "unsupported_parameter")
    before_prefix, before_suffix, before_reply = (mark for mark in marks if mark is not None)
    beginning = tokenizer.encode("", reading.add_special_tokens)
    prefix = prompt.token_ids[len(beginning) :] if prompt.token_ids[: len(beginning)] == beginning else prompt.token_ids
    rest = await encode_text(tokenizer, suffix, "suffix", PromptReading(False, reading.parse_special))
    token_ids = [*beginning, before_prefix, *prefix, before_suffix, *rest, before_reply]
    return EncodedPrompt(token_ids, prompt.text)


def reply_room(prompt_len: int, max_tokens: int | None, default: int | None, max_model_len: int) -> int:
    """How many tokens the reply may have; a default of None is all the room there is.

    Raises ApiError with both lengths where they do not fit the model.
    """
    room = max_model_len - prompt_len
    if max_tokens is None and room >= 1:
        return room if default is None else min(default, room)
    asked = 1 if max_tokens is None else max_tokens
    if asked <= room:
        return asked
    raise ApiError(
        400,
        f"This model's maximum context length is {max_model_len} tokens, but the request needs "
        f"{prompt_len + asked}: {prompt_len} in the prompt and {asked} for the reply.",
        "prompt" if room < 1 else "max_tokens",
        "context_length_exceeded",
    )
