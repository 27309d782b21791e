"""POST /v1/chat/completions.

Knows its own form of the wire.
"""
