"""The chat page and the live page: static files that browsers load, served by `server.routes.pages`."""
