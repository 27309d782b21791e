"""The asyncio side of the worker: its process, what is sent to it and what comes back.

Knows messages; nothing of HTTP or text.
"""
