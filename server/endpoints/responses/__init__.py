"""POST /v1/responses.

Knows its own form of the wire.
"""
