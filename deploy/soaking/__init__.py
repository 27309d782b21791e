"""The parts of `deploy.soak`: the requests, how they ended, and the killing and stopping of the worker.

Knows a server by its HTTP API and its worker by its process id.
"""
