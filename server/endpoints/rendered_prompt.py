"""Has a conversation rendered, and its pictures read and processed beside: what every path that takes messages shares.

Knows nothing of replies. Invariant: a picture is read only for a model that sees, and within the server's limits.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from starlette.requests import Request

from server.http.errors import invalid
from server.http.sse import until_disconnect
from server.prompts.chat_template import ChatTemplate, Conversation
from server.prompts.images.image_file import ImageLimits, image_bytes, read_image
from server.prompts.images.placing import with_images
from server.prompts.images.processor import ImageProcessor, ProcessedImage
from server.prompts.served_model import ServedModel
from server.prompts.special_tokens import MarkedText
from server.schemas.messages import ImageUrl
from server.service import Service


async def render_prompt(
    request: Request, service: Service, model: ServedModel, template: ChatTemplate, conversation: Conversation
) -> tuple[MarkedText, Sequence[ProcessedImage]]:
    """The prompt's text and its pictures, which it has the processor's text for. Raises ApiError for what the template,
    the model or this server cannot do."""
    if not conversation.images:
        return await service.render(template, conversation), ()
    processor = _processor_of(model)
    settings, images = model.settings, conversation.images
    if len(images) > settings.max_images:
        message = f"The messages have {len(images)} pictures; this server takes {settings.max_images} at most."
        raise invalid(message, "messages", "above_limit")
    limits, processed = ImageLimits(settings.max_image_bytes, settings.max_image_pixels), []
    for image in images:
        content = None
        if settings.image_hosts and image.url.lower().startswith(("http://", "https://")):
            fetching = service.fetcher.fetch(image.url, settings.image_hosts, limits.most_bytes)
            content = await until_disconnect(request.receive, fetching)
        work = partial(_processed, image, content, limits, processor)
        processed.append(await service.pool.run_beside(request, work))
    rendered = await service.render(template, conversation)
    return with_images(rendered, processed, processor), processed


def _processor_of(model: ServedModel) -> ImageProcessor:
    processor, reason = model.tokenizer.images, model.engine.blindness
    if reason is None and processor is None:
        reason = "its processor cannot be loaded, see the server's log"
    if processor is None or reason is not None:
        raise invalid(f"The model takes no pictures: {reason}.", "messages", "unsupported_content")
    return processor


def _processed(
    image: ImageUrl, content: bytes | None, limits: ImageLimits, processor: ImageProcessor
) -> ProcessedImage:
    """content: its file, where that was fetched."""
    file = image_bytes(image.url, limits) if content is None else content
    return processor.process(read_image(file, limits), image.detail)
