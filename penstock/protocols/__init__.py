"""Bytes and messages to requests, replies to bytes: pure, no servers."""
