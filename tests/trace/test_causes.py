"""One table of causes and stages: what is in it is known everywhere."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import ggml_py as ggml
from ggml_py.export.json import plan_file as to_json
from ggml_py.trace import causes
from ggml_py.trace.answers import reasons
from ggml_py.trace.cause import WITNESSES

from ..support.worlds import attention_with_sinks

REPO = Path(__file__).resolve().parents[2]


def test_the_header_for_c_is_the_table(tmp_path):
    """`python -m vendor.stages` writes it."""
    header = REPO / "ggml_py" / "native" / "stages.h"
    program = (
        "from vendor import stages, identity; from pathlib import Path\n"
        f"stages.TARGET = Path({str(tmp_path / 'stages.h')!r}); stages.main()"
    )
    subprocess.run([sys.executable, "-c", program], cwd=REPO, check=True, capture_output=True)
    assert (tmp_path / "stages.h").read_text() == header.read_text()


@pytest.mark.parametrize("row", causes.CODES, ids=lambda row: f"{row.code} in pass {row.pass_}")
def test_each_row_is_whole(row):
    assert row.witness in (*WITNESSES, "")
    pre_checked = (causes.PINNED, causes.UPGRADED, causes.SPLIT_COPY, causes.INPUT_COPY)
    assert (row.rule in reasons.RULES) != (row in pre_checked)
    code = f"{row.code}3" if row.numbered else row.code
    assert causes.PATTERN.fullmatch(code)
    stage = next((n for n, stage in causes.STAGES.items() if stage.pass_ == row.pass_), -1)
    assert causes.find(code, stage) is row


def test_a_damaged_number_of_a_source_is_noticed():
    assert causes.source_of(causes.WEIGHT, "1.wgt2") == 2
    assert causes.source_of(causes.WEIGHT, "1.wgtx") == -1
    assert not causes.PATTERN.fullmatch("1.wgt")


def test_a_code_that_gets_a_row_is_known_everywhere(monkeypatch, tmp_path):
    text = "{backend} was drawn by lot"
    new = causes.Code("7.new", 7, text, root=causes.PIN, rule="fallback")
    plan = attention_with_sinks()
    node = next(n for n in plan.nodes if n.is_computed)
    places = [*plan.outcome.placements]
    places[node.id] = places[node.id]._replace(cause="7.new", stage=causes.NOT_KNOWN)
    plan = replace(plan, outcome=replace(plan.outcome, placements=tuple(places)))
    sentence = f"{node.backend} was drawn by lot"
    assert plan.nodes[node.id].cause.text == "upstream set no cause"  # there is no row yet

    monkeypatch.setattr(causes, "CODES", [*causes.CODES, new])
    monkeypatch.setattr(causes, "find", causes.find.__wrapped__)
    cause = plan.nodes[node.id].cause
    assert (cause.code, cause.pass_, cause.text) == ("7.new", 7, sentence)
    log, page = ggml.Plan.from_debug_log(plan.text()), ggml.Plan.from_snapshot(plan.snapshot())
    assert log.nodes[node.id].cause.text == page.nodes[node.id].cause.text == sentence
    assert sentence in str(log.explain(node.id))
    assert log.explain(node.id).root == "pin"
    plan.to_json(tmp_path / "plan.json")
    assert to_json.read(tmp_path / "plan.json").nodes[node.id].cause.text == sentence
    log.export(tmp_path / "plan.html")
    assert sentence in (tmp_path / "plan.html").read_text()
    rule = reasons._rule_of(Asked("7.new"))
    assert rule is reasons.RULES["fallback"]


class Asked:
    """A case of `reasons`, as far as the choice of the rule looks at it."""

    def __init__(self, code):
        self.step = self
        self.answer, self.pass_, self.sweep = code, 7, ""
