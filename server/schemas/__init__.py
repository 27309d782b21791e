"""The wire models, one file per endpoint: what clients may send, and what they get."""
