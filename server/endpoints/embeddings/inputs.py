"""Encodes what is to be embedded, and refuses what cannot be. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from server.http.errors import invalid, require_at_most
from server.prompts.encoding import PromptReading, encode_text, require_in_vocabulary
from server.prompts.served_model import ServedModel
from server.schemas.completions import Prompt

MAX_INPUTS = 2048  # of one request, as OpenAI's


def encode_inputs(
    model: ServedModel, inputs: Sequence[Prompt], dimensions: int | None, is_cut: bool = False
) -> list[list[int]]:
    """The token ids of each input, with those that the tokenizer adds. is_cut: one that is too long loses its end.
    Raises ApiError, which names input or dimensions."""
    if not model.engine.embedding_len:
        raise invalid(f"The model {model.name} gives no embeddings here.", "model", "no_embeddings")
    require_at_most(len(inputs), MAX_INPUTS, "input")
    require_at_most(dimensions or 1, model.engine.embedding_len, "dimensions")
    return [_encoded(model, each, number, is_cut) for number, each in enumerate(inputs)]


def _encoded(model: ServedModel, given: Prompt, number: int, is_cut: bool) -> list[int]:
    if not given:
        raise invalid(f"input: entry {number} is empty; it must have at least one token.", "input", "empty_input")
    if isinstance(given, str):
        shown = given[: model.most_characters] if is_cut else given
        token_ids = encode_text(model, shown, "input", PromptReading())
    else:
        require_in_vocabulary(given, model.engine.vocab_size, "input")
        token_ids = given
    most = model.engine.max_model_len - 1  # an embedding takes room for one token of a reply
    if is_cut:
        return token_ids[:most]
    if len(token_ids) > most:
        message = f"input: entry {number} has {len(token_ids)} tokens, but this model embeds {most} at most."
        raise invalid(message, "input", "context_length_exceeded")
    return token_ids
