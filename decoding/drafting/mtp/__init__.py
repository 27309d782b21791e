"""Multi-token prediction: the drafting layer that some models bring in their own checkpoints.

Only this room knows its tensors and how it reads what the target knew. What runs and grows is EAGLE-3's.
"""
