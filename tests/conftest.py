"""For all tests: the first call of a compiled loop compiles it, which no deadline should be set for."""

from hypothesis import settings

settings.register_profile("compiled", deadline=None)
settings.load_profile("compiled")
