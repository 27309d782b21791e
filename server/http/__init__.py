"""HTTP itself: connections and bodies within bounds, API keys and their rates, sessions, errors, event streams.

Knows nothing of models or text.
"""
