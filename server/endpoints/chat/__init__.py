"""POST /v1/chat/completions: its route, its options and its reply format."""
