"""Trains EAGLE-3 draft heads on a target's own answers, with EAGLE-3's loss or GTO's loss on draft trees.

Not the engine; nothing that serves imports this.
"""
