"""The models of a server: which there are, what each needs, and when each is loaded and unloaded."""
