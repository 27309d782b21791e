"""What others do, to compare with: recycled, isotropic, copied and plain.

Knows the stores and the kit of `drafting.tree`.
"""
