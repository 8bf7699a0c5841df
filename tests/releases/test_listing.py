"""`ggml-py releases`: the list of releases, and what each build takes here."""

import json
import re
import subprocess
from pathlib import Path

from ggml_py.releases.listing import listing
from ggml_py.trace.rules import RELEASES
from vendor import releases

from ..support.cli_runs import ok


def test_the_list_has_every_release_and_the_rules_that_it_changed():
    rows = listing()
    assert [row.label for row in rows] == [known.label for known in RELEASES]
    assert [row.label for row in rows if row.default] == [releases.default().label]
    by_label = {row.label: row for row in rows}
    assert by_label["0.18.0"].rules == {
        "ignore_weights": "FLASH_ATTN_EXT no longer follows its weights in pass 1"
    }
    assert by_label["0.26.0"].rules == {} and by_label[RELEASES[-1].label].rules == {}


def test_the_list_says_what_a_build_takes():
    (build,) = [one for one in listing()[0].here if one.instrumented][:1]
    folder = Path(build.folder)
    du = subprocess.run(["du", "-sb", folder], capture_output=True, text=True, check=True).stdout
    assert abs(build.disk - int(du.split()[0])) < 100_000  # du counts folders, too
    assert build.seconds == json.loads((folder / "build.json").read_text()).get("seconds")


def test_the_list_on_the_command_line():
    said = ok("releases")
    for known in RELEASES:
        assert re.search(rf"(?m)^[* ] {re.escape(known.label)} .*{re.escape(known.package)}", said)
    assert f"of {len(RELEASES)} releases are built here" in said
    rows = json.loads(ok("releases", "--json"))["releases"]
    assert rows == [row.to_dict() | {"here": rows[i]["here"]} for i, row in enumerate(listing())]
