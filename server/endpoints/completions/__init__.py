"""POST /v1/completions.

Knows its own form of the wire.
"""
