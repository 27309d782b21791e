"""Pictures of a benchmark: smooth colours made of a number. No two are alike, and each is the same everywhere."""

from __future__ import annotations

from base64 import b64encode
from io import BytesIO

import numpy as np
from PIL import Image

COARSE = 8  # colours a side, between which the picture is smooth: a file of some kilobytes
QUALITY = 90


def picture_of(number: int, side: int) -> Image.Image:
    """Of `side` x `side` pixels."""
    colours = np.random.default_rng(number).integers(0, 256, (COARSE, COARSE, 3), np.uint8)
    return Image.fromarray(colours).resize((side, side), Image.Resampling.BICUBIC)


def picture_url(number: int, side: int) -> str:
    """A JPEG file of it, as a data: URL."""
    content = BytesIO()
    picture_of(number, side).save(content, "JPEG", quality=QUALITY)
    return f"data:image/jpeg;base64,{b64encode(content.getvalue()).decode()}"
