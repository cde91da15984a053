"""For all tests: no deadline, since the first call of a compiled loop compiles it; the same cases in every run."""

from hypothesis import settings

settings.register_profile("compiled", deadline=None, derandomize=True)
settings.load_profile("compiled")
