"""What drafting remembers, outside the workers: questions and answers, copies, files.

Knows nothing of what is in a session, nor of routes.
"""
