"""The asyncio side of the worker: its process, what is sent to it and what comes back.

Knows messages, and which error a client gets; nothing of routes or text.
"""
