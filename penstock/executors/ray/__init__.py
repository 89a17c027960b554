"""Workers that a cluster of Ray places; docs/many-machines.md."""
