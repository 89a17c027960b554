"""The processes of a service, and their supervision."""
