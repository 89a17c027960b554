"""The graph of ops and one request's way through it: pure, no threads, sockets or clocks."""
