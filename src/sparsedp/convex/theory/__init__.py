"""Rates and lower bounds of SGO as programs."""
