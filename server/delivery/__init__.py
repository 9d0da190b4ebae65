"""From the engine's steps to the answers that wait for them, token by token, on the event loop."""
