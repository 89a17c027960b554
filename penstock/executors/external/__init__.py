"""In workers that connect to a socket of the service, started by hand or by others."""
