"""The parts of `deploy.soak`: what is asked, how it ended, and what is done to the worker meanwhile.

Knows a server by its HTTP API and its worker by its process id.
"""
