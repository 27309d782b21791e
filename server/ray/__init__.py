"""Gander on Ray Serve: a front that routes requests by session, and replicas, each a whole server without its port."""
