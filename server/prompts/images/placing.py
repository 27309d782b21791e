"""Puts pictures into a rendered prompt: their text in place of what the chat template wrote for them, and in the
prompt's tokens the places of their rows. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice

from decoding.core.picture import Picture, Span
from server.http.errors import invalid
from server.prompts.images.processor import ImageProcessor, ProcessedImage
from server.prompts.special_tokens import MarkedText


def with_images(rendered: MarkedText, images: Sequence[ProcessedImage], processor: ImageProcessor) -> MarkedText:
    """The prompt with each picture's text. Raises ApiError where the template wrote no placeholder for each."""
    pieces = rendered.text.split(processor.placeholder)
    if len(pieces) != len(images) + 1:
        message = (
            f"The chat template shows {len(pieces) - 1} pictures of {len(images)}; this model cannot be shown these."
        )
        raise invalid(message, "messages", "unsupported_content")
    texts = [text for piece, image in zip(pieces, images, strict=False) for text in (piece, image.text)]
    return replace(rendered, text="".join([*texts, pieces[-1]]))


def placed(
    images: Sequence[ProcessedImage], token_ids: Sequence[int], processor: ImageProcessor | None
) -> list[Picture]:
    """The pictures of a prompt. Raises ApiError where it has other places for rows than theirs, since its text names
    the token for them."""
    if processor is None:
        return []
    places = [place for place, token_id in enumerate(token_ids) if token_id == processor.row_token_id]
    if len(places) != sum(image.num_rows for image in images):
        message = f"The messages must not have {processor.row_token!r}, which stands for a part of a picture."
        raise invalid(message, "messages", "unsupported_content")
    if places and places[-1] == len(token_ids) - 1:
        raise invalid("A prompt must go on with text after its last picture.", "messages", "unsupported_content")
    left = iter(places)
    return [Picture(image.digest, image.inputs, _spans(islice(left, image.num_rows))) for image in images]


def _spans(places: islice[int]) -> tuple[Span, ...]:
    """Ascending places, neighbours together."""
    spans: list[Span] = []
    for place in places:
        if spans and spans[-1].end == place:
            spans[-1] = Span(spans[-1].first, spans[-1].length + 1)
        else:
            spans.append(Span(place, 1))
    return tuple(spans)
