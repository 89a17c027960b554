"""One inference library each, imported on use."""
