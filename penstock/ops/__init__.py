"""Op classes, their hooks, and models and functions as ops."""
