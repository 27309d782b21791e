"""Ray Serve: a front that knows sessions, and replicas that are each a whole server without its port."""
