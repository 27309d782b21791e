"""Encodes prompts, and refuses those that cannot be served.

Knows nothing of sampling or of the worker.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from decoding.core.picture import Picture
from server.http.errors import invalid
from server.prompts.served_model import ServedModel
from server.prompts.special_tokens import MarkedText
from server.schemas.completions import Prompt
from server.schemas.generation import Prediction

# Special tokens of models trained to fill in the middle: before the prefix, before the suffix, before the reply.
FILL_IN_THE_MIDDLE = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen coder, CodeGemma
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder, Granite
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),  # SantaCoder
    ("▁<PRE>", "▁<SUF>", "▁<MID>"),  # Code Llama
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),  # DeepSeek coder
)


@dataclass(frozen=True, slots=True)
class EncodedPrompt:
    """text: the text that the client sent, or that of the token ids it sent.

    shows_special_tokens: whether special tokens have their names in the text; num_added: tokens at the beginning that
    the text does not have, because the tokenizer added them; pictures: in order.
    """

    token_ids: list[int]
    text: str
    shows_special_tokens: bool = False
    num_added: int = 0
    pictures: Sequence[Picture] = ()


@dataclass(frozen=True, slots=True)
class PromptReading:
    """How a prompt's text is encoded, see `Tokenizer.encode`.

    is_cut: the prompt will be shortened to its last tokens, so that one longer than the context is not an error;
    shows_special_tokens: the text of a prompt in token ids has the names of special tokens.
    """

    add_special_tokens: bool = True
    parse_special: bool = True
    is_cut: bool = False
    shows_special_tokens: bool = False


AS_IT_IS = PromptReading(add_special_tokens=False)


def encode_prompts(
    model: ServedModel, prompts: Sequence[Prompt], reading: PromptReading, least: int = 1
) -> list[EncodedPrompt]:
    """Encode all prompts. What is known of their lengths is checked first, and the first prompt that leaves no room for
    a reply of `least` tokens is the last that is encoded. Raises ApiError."""
    most = model.engine.max_model_len
    if reading.is_cut:
        prompts = [_cut(model, prompt) for prompt in prompts]
    for prompt in prompts:
        if isinstance(prompt, str):
            require_short(model, prompt, "prompt")
        elif not reading.is_cut:
            require_room(len(prompt), least, most)
    encoded = []
    beginning = model.tokenizer.encode("", reading.add_special_tokens)
    for number, prompt in enumerate(prompts):
        if isinstance(prompt, str):
            token_ids = encode_text(model, prompt, "prompt", reading)
            num_added = len(beginning) if token_ids[: len(beginning)] == beginning else 0
            each = EncodedPrompt(token_ids, prompt, True, num_added)
        else:
            require_in_vocabulary(prompt, model.engine.vocab_size, "prompt")
            each = decoded_prompt(model, prompt, reading.shows_special_tokens)
        if not each.token_ids:
            which = "The prompt" if len(prompts) == 1 else f"Prompt {number}"
            raise invalid(f"{which} is empty; it must have at least one token.", "prompt", "empty_prompt")
        if not reading.is_cut:
            require_room(len(each.token_ids), least, most)
        encoded.append(each)
    return encoded


def decoded_prompt(model: ServedModel, token_ids: list[int], shows_special_tokens: bool) -> EncodedPrompt:
    """A prompt of these tokens, with their text."""
    return EncodedPrompt(token_ids, model.tokenizer.decode(token_ids, not shows_special_tokens), shows_special_tokens)


def require_in_vocabulary(token_ids: Sequence[int], vocab_size: int, param: str) -> None:
    outside = next((token_id for token_id in token_ids if not 0 <= token_id < vocab_size), None)
    if outside is not None:
        message = f"Token id {outside} is outside the vocabulary, which has {vocab_size} tokens."
        raise invalid(message, param, "token_out_of_vocabulary")


def require_short(model: ServedModel, text: str, param: str) -> None:
    """Raises ApiError for text that is longer than the context even where each token is the vocabulary's longest."""
    if len(text) > model.most_characters:
        most = model.engine.max_model_len
        error = invalid(
            f"{param} has {len(text)} characters, but this model's maximum context length is "
            f"{most} tokens, which are {model.most_characters} characters at most.",
            param,
            "context_length_exceeded",
        )
        least = math.ceil(len(text) * most / model.most_characters)
        error.anthropic_message = too_long(least, most)
        raise error


def _cut(model: ServedModel, prompt: Prompt) -> Prompt:
    """The prompt's end, which is long enough for any number of tokens that the context can hold."""
    return prompt[-model.most_characters :] if isinstance(prompt, str) else prompt[-model.engine.max_model_len + 1 :]


def encode_text(model: ServedModel, text: str, param: str, reading: PromptReading = AS_IT_IS) -> list[int]:
    """The token ids of `text`. Raises ApiError for text that is not Unicode or longer than the context can hold."""
    require_short(model, text, param)
    try:
        text.encode()
    except UnicodeEncodeError:
        message = f"{param} has half a surrogate pair, which is not a character."
        raise invalid(message, param, "invalid_unicode") from None
    return model.tokenizer.encode(text, reading.add_special_tokens, reading.parse_special)


def encode_rendered(model: ServedModel, rendered: MarkedText, reading: PromptReading) -> list[int]:
    """The token ids of rendered messages. A special token's name is that token only where the chat template wrote it.

    Raises ApiError for text that is not Unicode or longer than the context can hold.
    """
    if reading.is_cut:
        rendered = replace(rendered, text=rendered.text[-model.most_characters :])
    require_short(model, rendered.plain, "messages")
    token_ids: list[int] = []
    for number, (text, parse_special) in enumerate(model.tokenizer.special_tokens.pieces(rendered)):
        piece = PromptReading(reading.add_special_tokens and number == 0, parse_special)
        token_ids += encode_text(model, text, "messages", piece)
    return token_ids


def encode_prediction(model: ServedModel, prediction: Prediction | None) -> list[int]:
    """The token ids of a predicted output, cut to what the context can hold. Raises ApiError for text not Unicode."""
    text = "" if prediction is None else prediction.content[: model.most_characters]
    return encode_text(model, text, "prediction")


def fill_in_the_middle(model: ServedModel, prompt: EncodedPrompt, suffix: str, reading: PromptReading) -> EncodedPrompt:
    """A prompt that asks for the text between the prompt and `suffix`. Raises ApiError for a model that lacks this."""
    tokenizer = model.tokenizer
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
    rest = encode_text(model, suffix, "suffix", replace(reading, add_special_tokens=False))
    token_ids = [*beginning, before_prefix, *prefix, before_suffix, *rest, before_reply]
    return EncodedPrompt(token_ids, prompt.text)


def require_room(prompt_len: int, reply_len: int, max_model_len: int) -> None:
    """Raises ApiError with both lengths where prompt and reply exceed the context, in words by which agents know that
    they have to shorten their conversation."""
    if prompt_len + reply_len > max_model_len:
        error = invalid(
            f"This model's maximum context length is {max_model_len} tokens, but the request needs "
            f"{prompt_len + reply_len}: {prompt_len} in the prompt and {reply_len} for the reply.",
            "prompt" if prompt_len >= max_model_len else "max_tokens",
            "context_length_exceeded",
        )
        if prompt_len >= max_model_len:
            error.anthropic_message = too_long(prompt_len, max_model_len)
        raise error


def too_long(prompt_len: int, max_model_len: int) -> str:
    """Anthropic's sentence for a prompt that does not fit; one token is the reply's at least."""
    return f"prompt is too long: {prompt_len} tokens > {max_model_len - 1} maximum"
