"""The HTTP API: a file or folder for each group of paths, with its route, its options and its replies' serializer.

An endpoint knows HTTP and its own schema; `generation` and the service do the rest.
"""
