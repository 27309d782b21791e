"""Pictures' files: formats, turns, transparency, limits, and what is broken."""

from __future__ import annotations

import struct
import zlib
from base64 import b64encode
from io import BytesIO
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageFile

from server.http.errors import ApiError
from server.prompts.images.image_file import ImageLimits, image_bytes, read_image

LIMITS = ImageLimits(most_bytes=100_000, most_pixels=10_000)
PIXELS = np.random.default_rng(0).integers(0, 256, (8, 12, 3), np.uint8)


def file_of(image: Image.Image, form: str, **options: Any) -> bytes:
    content = BytesIO()
    image.save(content, form, **options)
    return content.getvalue()


_DATA = struct.pack(">I", 4) + b"IDATabcd" + struct.pack(">I", zlib.crc32(b"IDATabcd"))


def png_header(width: int, height: int) -> bytes:
    """A PNG file that says it is so large, and has hardly anything else."""
    fields = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + fields + struct.pack(">I", zlib.crc32(fields)) + _DATA


@pytest.mark.parametrize(("form", "options"), [("PNG", {}), ("WEBP", {"lossless": True})])
def test_formats_without_loss_give_their_pixels(form: str, options: dict[str, Any]) -> None:
    image = read_image(file_of(Image.fromarray(PIXELS), form, **options), LIMITS)
    assert image.mode == "RGB"
    assert np.array_equal(np.asarray(image), PIXELS)


def test_jpeg_is_read_and_of_a_gif_the_first_frame() -> None:
    assert read_image(file_of(Image.fromarray(PIXELS), "JPEG"), LIMITS).size == (12, 8)
    frames = [Image.new("RGB", (4, 4), color) for color in ("red", "blue")]
    image = read_image(file_of(frames[0], "GIF", save_all=True, append_images=frames[1:]), LIMITS)
    assert image.getpixel((0, 0)) == (255, 0, 0)


def test_what_exif_says_is_turned() -> None:
    image = Image.fromarray(PIXELS)
    exif = image.getexif()
    exif[0x0112] = 6  # to be turned by a quarter
    assert read_image(file_of(image, "PNG", exif=exif), LIMITS).size == (8, 12)


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_transparency_is_white(mode: str) -> None:
    image = Image.new("RGBA", (4, 4), (255, 0, 0, 0)).convert(mode)
    options = {"transparency": 0} if mode == "P" else {}
    assert read_image(file_of(image, "PNG", **options), LIMITS).getpixel((1, 1)) == (255, 255, 255)


def test_sixteen_bits_are_brought_to_eight() -> None:
    image = Image.fromarray(np.full((4, 4), 0x8000, np.uint16))
    assert read_image(file_of(image, "PNG"), LIMITS).getpixel((0, 0)) == (128, 128, 128)


PNG = file_of(Image.fromarray(PIXELS), "PNG")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "none of PNG, JPEG, WebP and GIF"),
        (b"%PDF-1.7 and more", "none of PNG, JPEG, WebP and GIF"),
        (file_of(Image.fromarray(PIXELS), "BMP"), "none of PNG, JPEG, WebP and GIF"),
        (PNG[: len(PNG) // 2], "PNG file is broken"),
        (file_of(Image.fromarray(PIXELS), "JPEG")[:-20], "JPEG file is broken"),
        (png_header(0, 0), "none of PNG|may be 200 times"),
        (png_header(1, 9_000), "may be 200 times the other"),
        (png_header(1, 100_000), "100,000 pixels; this server takes 10,000"),
        (png_header(50_000, 50_000), "this server takes 10,000 in all"),
        (file_of(Image.fromarray(PIXELS), "JPEG") + b"\xff\xda" * 100, "has more than 100 scans"),
        (PNG + bytes(100_000), "this server takes 100,000 at most"),
    ],
)
def test_what_cannot_be_read_is_refused_with_a_sentence(content: bytes, message: str) -> None:
    with pytest.raises(ApiError) as refused:
        read_image(content, LIMITS)
    assert refused.value.status == 400
    assert any(part in refused.value.message for part in message.split("|")), refused.value.message


def test_a_bomb_is_refused_by_its_header(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is unpacked."""
    content = file_of(Image.new("1", (9_000, 9_000)), "PNG")
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda _: pytest.fail("it was unpacked"))
    with pytest.raises(ApiError) as refused:
        read_image(content, LIMITS)
    assert refused.value.message == "A picture has 9,000 x 9,000 pixels; this server takes 10,000 in all at most."


def test_urls() -> None:
    assert image_bytes(f"data:image/png;base64,{b64encode(PNG).decode()}", LIMITS) == PNG
    for url, message in (
        ("https://example.com/a.png", "fetches no pictures"),
        ("file:///etc/passwd", "fetches no pictures"),
        ("data:image/png,abc", "must have the form"),
        ("data:image/png;base64", "must have the form"),
        ("data:image/png;base64,a*b", "not valid base64"),
        (f"data:image/png;base64,{'A' * 200_000}", "takes 100,000 at most"),
    ):
        with pytest.raises(ApiError) as refused:
            image_bytes(url, LIMITS)
        assert message in refused.value.message
