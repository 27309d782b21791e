"""The worker process: it takes messages in, runs the engine's steps and sends messages out.

The server knows of it only the messages and the file of what runs.
"""
