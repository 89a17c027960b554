"""Where a batch runs."""
