"""Exporters of plans and runs: each takes plain data and returns text."""
