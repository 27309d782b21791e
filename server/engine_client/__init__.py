"""The asyncio side of the engine: its workers' processes, which runs what, what is sent to them and what comes back.

Knows messages, and which error a client gets; nothing of routes or text.
"""
