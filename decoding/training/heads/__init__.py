"""Training EAGLE-3 draft heads for a target: answers of its own, EAGLE-3's loss, and GTO's on the draft tree.

Not the engine; nothing that serves imports this.
"""
