"""Renderers of plans: each takes plain data and returns text."""
