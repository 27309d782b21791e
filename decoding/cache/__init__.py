"""Keys and values in blocks, who holds which block, and how the tokens of a step are packed.

Knows layers and tokens' positions; nothing of what the tokens mean.
"""
