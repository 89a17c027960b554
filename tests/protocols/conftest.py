"""Properties here have no time limit for a single example: on a busy machine any may take long."""

from hypothesis import settings

settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")
