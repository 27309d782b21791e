"""An EAGLE-3 head: one layer that drafts from what the target itself has computed (Li et al., 2025).

Only this room knows a head's tensors, files and features.
"""
