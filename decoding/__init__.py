"""Gander's engine: it knows token ids, and nothing of HTTP, text or asyncio."""

import os

from decoding.kernels.cache import use_kernel_cache
from decoding.process.machine import limit_pools

__version__ = "0.1.0"

use_kernel_cache()
limit_pools(os.environ)
