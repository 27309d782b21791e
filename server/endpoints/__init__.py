"""One file or folder for each group of paths: the route, the options of its own fields, the serializer of its replies.

Knows HTTP and its own schema, and asks `generation` and the service for the rest.
"""
