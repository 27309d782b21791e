"""One tree from every source: what each says of a token, how that is weighed, and the tree that grows from it.

Knows the stores, the draft model's rows and the kit of `drafting.tree`.
"""
