"""The page at `/`: files served as they are by `server.endpoints.page`; holds no code of the server's."""
