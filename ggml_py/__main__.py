"""``python -m ggml_py`` is the command line."""

from .cli import main

main()
