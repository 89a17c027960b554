"""Protocols: decode bytes to requests, encode replies to bytes. Pure, no servers."""
