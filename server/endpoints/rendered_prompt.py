"""Has a conversation rendered, and its pictures read and processed beside: what every path that takes messages shares.

Knows nothing of replies. Invariant: a picture is read only for a model that sees, and within the server's limits.
"""

from __future__ import annotations

from collections.abc import Sequence

from starlette.requests import Request

from server.http.errors import invalid
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
    limits = ImageLimits(settings.max_image_bytes, settings.max_image_pixels)
    processed = await service.pool.run_beside(
        request, lambda: [_processed(image, limits, processor) for image in images]
    )
    rendered = await service.render(template, conversation)
    return with_images(rendered, processed, processor), processed


def _processor_of(model: ServedModel) -> ImageProcessor:
    processor, reason = model.tokenizer.images, model.engine.blindness
    if reason is None and processor is None:
        reason = "its processor cannot be loaded, see the server's log"
    if processor is None or reason is not None:
        raise invalid(f"The model takes no pictures: {reason}.", "messages", "unsupported_content")
    return processor


def _processed(image: ImageUrl, limits: ImageLimits, processor: ImageProcessor) -> ProcessedImage:
    return processor.process(read_image(image_bytes(image.url, limits), limits), image.detail)
