"""Typed functions as ops: annotations are the schema of requests and answers."""
