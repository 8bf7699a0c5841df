"""The release that is pinned."""

import re
from pathlib import Path

REPO = Path(__file__).parents[2]
RELEASES = (REPO / "vendor" / "upstream.toml").read_text()
PIN = re.search(r'^default = "(.+?)"', RELEASES, re.M)[1]
