"""The page at `/`: files served as they are by `server.routes.page`; holds no code of the server's."""
