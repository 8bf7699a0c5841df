"""Plans a saved plan's graph again, in a process that has loaded the release of GGML_PY_UPSTREAM.

python -m ggml_py.releases.again SAVED.json.gz AGAIN.json.gz
"""

from __future__ import annotations

import sys

from ..errors import GgmlError
from ..plan import Plan
from ..scheduler.replay import replay_as_recorded


def main() -> int:
    """Writes the new plan. After an error the last line on standard error says why."""
    saved, again = sys.argv[1:]
    try:
        replay_as_recorded(Plan.from_json(saved)).to_json(again)
    except (GgmlError, ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
