"""The law of batches: every request is answered as when it is alone."""
