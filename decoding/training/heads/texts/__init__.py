"""What a head learns from: prompts, the target's answers to them, and what the target knew at their tokens.

Nothing here knows a head's loss.
"""
