"""Files that outlive a process: how they are replaced, and whose they are."""
