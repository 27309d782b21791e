"""One file or folder for each group of paths: the route, and the serializer of its replies.

Knows HTTP and its own schema, and asks `generation` and the service for the rest.
"""
