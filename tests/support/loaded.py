"""Prints which modules are loaded when those that the command line names are imported."""

import importlib
import sys

for name in sys.argv[1:]:
    importlib.import_module(name)
print(*(name for name in sys.modules if name.startswith("ggml_py")))
