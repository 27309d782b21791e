"""`gander connect`: points an agent, an editor or a chat page at a running server."""
