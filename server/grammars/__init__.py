"""Makes the grammar that constrains a reply, from the request's format fields and its tools.

Knows schemas and their sizes; nothing of how grammars are enforced, nor of prompts.
"""
