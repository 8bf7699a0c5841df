"""The JSON schemas of docs/. `make schema` writes them."""

import json
import sys
from pathlib import Path

REPO = Path(__file__).parents[2]
sys.path.append(str(REPO))
from ggml_py.export.json import plan_file, run_file  # noqa: E402

SCHEMAS = {"plan.schema.json": plan_file.schema, "run.schema.json": run_file.schema}


def text(name: str) -> str:
    """The content of a schema's file."""
    return json.dumps(SCHEMAS[name](), indent=2) + "\n"


if __name__ == "__main__":
    for name in SCHEMAS:
        (REPO / "docs" / name).write_text(text(name))
