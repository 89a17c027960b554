"""The messages of the pipeline protocol."""
