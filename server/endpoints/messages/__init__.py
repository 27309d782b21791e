"""POST /v1/messages.

Knows its own form of the wire.
"""
