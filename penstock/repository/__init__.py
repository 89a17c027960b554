"""Which versions of models there are and should be, decided from values."""
