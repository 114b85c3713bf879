"""The terminal dashboard: a client of a server's stats feed over HTTP. It imports nothing of the server."""
