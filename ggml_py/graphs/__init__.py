"""Contexts with their ops, and graphs."""

# First: with another release's build `ops` is that release's own (boundary/release.py).
from ..boundary import ffi as ffi
