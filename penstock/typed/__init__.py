"""Typed functions as ops: annotations are the schema of what comes in and goes out."""
