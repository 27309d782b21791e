"""What a reply must follow: from the fields that ask for a form, and the tools, to a grammar.

Knows schemas and sizes; nothing of how grammars are kept to, nor of the prompt.
"""
