"""Loads what makes prompts of a model: its chat template and its tokenizer."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from decoding.errors import ConfigError, in_one_line
from server.config import ServerSettings
from server.prompts.chat_template import ChatTemplate, load_chat_template
from server.prompts.images.processor import load_image_processor
from server.prompts.jinja_template import TemplateRefusal
from server.prompts.model_files import ModelFiles
from server.prompts.tokenizer import Tokenizer, load_tokenizer

LOG = logging.getLogger("gander.service")


def load_prompts(settings: ServerSettings) -> tuple[ChatTemplate | None, Tokenizer]:
    """The model's chat template and its tokenizer. Blocks. Raises ConfigError with a sentence that names the model."""
    files = ModelFiles(settings.model, settings.revision, settings.gguf_file, settings.mmproj)
    with _refusing("chat template", settings):
        template = load_chat_template(files, settings)
    try:
        with _refusing("tokenizer", settings):
            tokenizer = load_tokenizer(files, settings.trust_remote_code)
            images = load_image_processor(files, settings.images, settings.trust_remote_code)
            return template, replace(tokenizer, images=images)
    except ConfigError:
        if template is not None:
            template.close()
        raise


@contextmanager
def _refusing(what: str, settings: ServerSettings) -> Iterator[None]:
    """Make a sentence of whatever is raised: a stranger's files make libraries raise anything."""
    try:
        yield
    except Exception as error:
        LOG.debug("The %s of %s cannot be loaded.", what, settings.model, exc_info=True)
        reason = in_one_line(error)
        cause = reason if isinstance(error, TemplateRefusal) else f"cannot be loaded: {reason}"
        raise ConfigError(f"the {what} of {settings.model} {cause}") from error
