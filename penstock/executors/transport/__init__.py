"""Frames, values and marshalling between an engine and its workers, over any byte stream. Pure."""
