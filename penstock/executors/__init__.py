"""Executors, which run the batches of one op: here, in threads, processes, or elsewhere."""
