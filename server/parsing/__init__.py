"""Parses a reply's text, piece by piece, into parts: reasoning, content and tool calls. Pure.

Invariant of every parser: the parts, joined, depend on the text and not on how it was cut into pieces.
"""
