"""The configuration: schema, YAML, checks, and merging of all sources."""
