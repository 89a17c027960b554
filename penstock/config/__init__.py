"""YAML in, checked options out."""
