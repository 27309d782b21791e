"""Files served as they are; holds no code."""
