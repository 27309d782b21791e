"""`python -m decoding.audit`: which of transformers' causal language models can be served.

Not the engine; nothing of it imports this.
"""
