"""The worker process: messages in, engine steps, messages out.

The messages are all the server knows of it.
"""
