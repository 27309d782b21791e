"""Gander's engine: it knows token ids, and nothing of HTTP, text or asyncio."""

from decoding.core.kernel_cache import use_kernel_cache

__version__ = "0.1.0"

use_kernel_cache()
