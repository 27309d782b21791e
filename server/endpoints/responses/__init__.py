"""POST /v1/responses: its route, its conversion to a chat request, its reply format and its stored responses."""
