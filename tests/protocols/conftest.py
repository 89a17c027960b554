"""Property tests here have no deadline for an example: on a busy machine any may take long."""

from hypothesis import settings

settings.register_profile("no-deadline", deadline=None)
settings.load_profile("no-deadline")
