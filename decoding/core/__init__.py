"""What everybody may know: requests and what they ask for, draft trees, what a step says of its tokens, counts.

Pure data. Imports nothing of this package but `errors`.
"""
