"""Where upstream comes from, and how it is fetched and compiled.

Nothing of upstream's is committed: `upstream.toml` pins the releases, the modules bring them.
"""
