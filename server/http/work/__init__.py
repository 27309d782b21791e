"""Whose turn it is: long work on the event loop, and work beside it."""
