"""From logits to the target's own tokens: law, noise, samplers, processors, grammars, and the one accept rule.

A row is the logits after one token. Knows rows and trees; nothing of models, drafters or steps.
"""
