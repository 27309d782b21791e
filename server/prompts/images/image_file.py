"""A picture from the bytes of its file: PNG, JPEG, WebP, or a GIF's first frame, upright and without transparency.

Owns the limits on files and pixels. Knows nothing of models. Invariant: nothing is unpacked before its size is known
from the file's header.
"""

from __future__ import annotations

from base64 import b64decode
from binascii import Error as NotBase64
from dataclasses import dataclass
from io import BytesIO
from typing import TYPE_CHECKING

from server.http.errors import ApiError, invalid

if TYPE_CHECKING:  # Pillow is imported late: most servers are sent no pictures
    from PIL import Image

FORMATS = ("PNG", "JPEG", "WEBP", "GIF")
SCAN = b"\xff\xda"  # begins each scan of a JPEG file; no scan has it within it
MOST_SCANS = 100  # a progressive file has about ten; each takes as long as the picture is large, however few its bytes
MOST_SLENDER = 200  # times as long as it is wide: what is more slender is no picture, and processors stumble over it
PARAM = "messages"  # endpoints that call it otherwise rename it
DATA, BASE64 = "data:", ";base64"


@dataclass(frozen=True, slots=True)
class ImageLimits:
    """most_bytes: of a file; most_pixels: of a picture."""

    most_bytes: int
    most_pixels: int


def image_bytes(url: str, limits: ImageLimits) -> bytes:
    """The file that a data: URL holds. Raises ApiError for any other URL, and for a file that is too large."""
    head, comma, content = url.partition(",")
    if not url.startswith(DATA):
        raise _refused(
            "This server fetches no pictures without --image-urls: send them as data: URLs with base64.",
            "unsupported_content",
        )
    if not comma or not head.endswith(BASE64):
        raise _refused("A picture's data: URL must have the form data:image/png;base64,...")
    if len(content) * 3 // 4 > limits.most_bytes:
        raise _too_large(len(content) * 3 // 4, limits)
    try:
        return b64decode(content, validate=True)
    except (NotBase64, ValueError):
        raise _refused("A picture's data: URL is not valid base64.") from None


def read_image(content: bytes, limits: ImageLimits) -> Image.Image:
    """The picture in a file, RGB. Raises ApiError for what is none, is broken, or is too large."""
    from PIL import Image
    from PIL.JpegImagePlugin import JpegImageFile

    if len(content) > limits.most_bytes:
        raise _too_large(len(content), limits)
    try:
        image = Image.open(BytesIO(content), formats=FORMATS)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise _too_many_pixels(limits) from None
    except Exception:  # a stranger's file makes the library raise anything
        raise _refused("A picture's file is none of PNG, JPEG, WebP and GIF, or its beginning is broken.") from None
    _check_size(image.width, image.height, limits)
    if isinstance(image, JpegImageFile) and content.count(SCAN) > MOST_SCANS:
        raise _refused(f"A picture's JPEG file has more than {MOST_SCANS} scans.", "above_limit")
    try:
        return _upright_and_opaque(image)
    except MemoryError:
        raise
    except Exception as error:
        raise _refused(f"A picture's {image.format} file is broken: {error}.") from None


def _check_size(width: int, height: int, limits: ImageLimits) -> None:
    if width * height > limits.most_pixels:
        raise _too_many_pixels(limits, f"{width:,} x {height:,}")
    if min(width, height) * MOST_SLENDER < max(width, height) or min(width, height) < 1:
        message = (
            f"A picture has {width:,} x {height:,} pixels; one side may be {MOST_SLENDER} times the other at most."
        )
        raise _refused(message)


def _upright_and_opaque(image: Image.Image) -> Image.Image:
    """The first frame, turned as its EXIF data say, on white where it is transparent."""
    from PIL import Image, ImageOps

    image.load()
    if image.mode.startswith("I"):  # 16 bits a pixel, of which Pillow would cut the brighter ones off
        image = image.point(lambda value: value * (1 / 256)).convert("L")
    upright = ImageOps.exif_transpose(image)
    if not upright.has_transparency_data:
        return upright.convert("RGB")
    on_white = Image.new("RGBA", upright.size, "white")
    return Image.alpha_composite(on_white, upright.convert("RGBA")).convert("RGB")


def _too_large(num_bytes: int, limits: ImageLimits) -> ApiError:
    message = f"A picture's file has {num_bytes:,} bytes; this server takes {limits.most_bytes:,} at most."
    return _refused(message, "above_limit")


def _too_many_pixels(limits: ImageLimits, size: str = "too many") -> ApiError:
    message = f"A picture has {size} pixels; this server takes {limits.most_pixels:,} in all at most."
    return _refused(message, "above_limit")


def _refused(message: str, code: str = "invalid_image") -> ApiError:
    return invalid(message, PARAM, code)
