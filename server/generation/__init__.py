"""From what an endpoint was asked to the choices it answers with.

Knows requests, tokens and text; nothing of the forms of the wire.
"""
