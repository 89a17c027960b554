"""The composition root: builds everything from ops and configuration, starts and stops it."""
