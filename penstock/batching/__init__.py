"""What runs together: pure, no threads, sockets or clocks."""
