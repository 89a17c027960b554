"""Worker processes: the executor, its protocol with workers and supervisor, and shared memory."""
