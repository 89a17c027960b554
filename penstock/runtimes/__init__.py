"""Runtimes: one module for each inference library, imported on use."""
