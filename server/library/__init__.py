"""Models by name: what the hub has of them, what its cache has; brought, listed, shown, removed."""
