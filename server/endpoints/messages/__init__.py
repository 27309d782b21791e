"""POST /v1/messages, Anthropic's API: its route, its conversion to a chat request and its reply format."""
