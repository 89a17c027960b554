"""Workers that an executor's own code starts, on this machine or another; docs/executors.md."""
