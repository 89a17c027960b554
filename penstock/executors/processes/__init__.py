"""Worker processes: what the engine, its workers and their supervisor need to live together."""
