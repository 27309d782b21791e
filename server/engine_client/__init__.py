"""The asyncio side of the engine: it starts the workers' processes, gives each its requests and hands on what comes
back.

Knows messages, and which error a client gets; nothing of routes or text.
"""
