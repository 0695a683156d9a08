"""One Hypothesis profile: no deadline per example, because a busy machine is not a failure."""

from hypothesis import settings

settings.register_profile("goddard", deadline=None)
settings.load_profile("goddard")
