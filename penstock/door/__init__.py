"""Connections, HTTP/1.1 and HTTP/2 sessions, TLS, limits and the byte budget."""
