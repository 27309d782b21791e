"""The page at `/`: files served as they are by `server.endpoints.page`; holds no code of the server's.

`app.js` wires `pages/` (race, chat, completion), which are made of `drafting/` (how a reply came about), `elements/`
(what any page has) and `api/` (calls to the server); each imports only from those after it.
"""
