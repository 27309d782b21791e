"""A processor of Pixtral's and Mistral 3's pictures: transformers' own imports torchvision, which nothing here needs.

Imported late: transformers takes seconds. The text of a picture is its rows of tokens, a break between rows and an end
after the last.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transformers import ProcessorMixin


class PixtralProcessor(ProcessorMixin):  # type: ignore[misc]
    """Fields of its file, and what transformers calls, are as of transformers' class of this name. patch_size: pixels a
    side; spatial_merge_size: patches a side that become one token."""

    def __init__(
        self,
        image_processor: Any,
        tokenizer: Any,
        patch_size: int = 16,
        spatial_merge_size: int = 1,
        chat_template: str | None = None,
        image_token: str = "[IMG]",
        image_break_token: str = "[IMG_BREAK]",
        image_end_token: str = "[IMG_END]",
        **_: Any,
    ) -> None:
        super().__init__(image_processor, tokenizer, chat_template=chat_template)
        self.patch_size, self.spatial_merge_size = patch_size, spatial_merge_size  # these names are saved
        self.image_token, self.image_token_id = image_token, tokenizer.convert_tokens_to_ids(image_token)
        self.image_break_token, self.image_end_token = image_break_token, image_end_token

    def _process_images(self, images: Any, **options: Any) -> Any:
        return super()._process_images(images, **options | {"patch_size": self.patch_size * self.spatial_merge_size})

    def replace_image_token(self, image_inputs: Mapping[str, Any], image_idx: int, **_: Any) -> str:
        side = self.patch_size * self.spatial_merge_size
        height, width = (int(pixels) // side for pixels in image_inputs["image_sizes"][image_idx])
        return self.image_break_token.join([self.image_token * width] * height) + self.image_end_token
