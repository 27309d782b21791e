"""Benchmarks of whole servers, through HTTP: `gander bench serve`.

Not the server; nothing of it imports this. Any server with OpenAI's API can be measured.
"""
