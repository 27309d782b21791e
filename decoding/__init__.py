"""Gander's engine: it knows token ids, and nothing of HTTP, text or asyncio."""

__version__ = "0.1.0"
