"""The sessions outside the workers: questions about them, copies of them, and files.

A session is what drafting remembers. This room knows nothing of what is in one, nor of routes.
"""
