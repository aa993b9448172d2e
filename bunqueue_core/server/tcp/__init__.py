"""The TCP side of the server: frames, connections, the listener."""
