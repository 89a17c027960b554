"""What runs after what: pure, no threads, sockets or clocks."""
