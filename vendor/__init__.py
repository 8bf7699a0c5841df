"""Fetches and compiles upstream.

No upstream source is committed. `upstream.toml` pins the releases; the modules download them.
"""
