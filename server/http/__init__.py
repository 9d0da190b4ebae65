"""Between the socket and the routes: listening, connections, keys, bodies, and how the process ends."""
