"""POST /v1/completions: its route, its options and its reply format."""
