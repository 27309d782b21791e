"""What everybody may know: requests and what they ask for, draft trees, what a step says of its tokens, counts.

Pure data, and where compiled kernels are kept. Imports nothing of this package but `errors`.
"""
