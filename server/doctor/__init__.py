"""`gander doctor`: what this machine gives a server, and what would make it faster."""
