"""External workers: the service does not start them; they connect to a socket of the service."""
