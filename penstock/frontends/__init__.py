"""The doors: HTTP and gRPC."""
