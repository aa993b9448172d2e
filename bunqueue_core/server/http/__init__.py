"""The HTTP side of the server: liveness, health, metrics; routes are drawn from the table of commands."""
