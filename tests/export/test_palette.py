"""The colours of plans are told apart, by everybody, and what stands on them is read."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import ggml_py as ggml
from ggml_py.export import palette, to_dot, to_model_explorer
from ggml_py.export.page import columns as page_data
from ggml_py.export.page import to_html, whole
from ggml_py.trace import reference
from ggml_py.trace.record import BackendRecord, BuftRecord, Capture

from ..support import captures
from ..support.drawn_plans import llama, smallest, spread

# How people see colours whose eyes lack one kind of cone (Machado, Oliveira, Fernandes 2009).
SIGHTS = {
    "all": np.eye(3),
    "no red": np.array([
        [0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ]),
    "no green": np.array([
        [0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ]),
    "no blue": np.array([
        [1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ]),
}  # fmt: skip
# Oklab (Ottosson 2020), in which distances are as they are seen: 0.02 is just noticed.
LMS = np.array([
    [0.4122214708, 0.5363325363, 0.0514459929], [0.2119034982, 0.6806995451, 0.1073969566],
    [0.0883024619, 0.2817188376, 0.6299787005],
])  # fmt: skip
LAB = np.array([
    [0.2104542553, 0.7936177850, -0.0040720468], [1.9779984951, -2.4285922050, 0.4505937099],
    [0.0259040371, 0.7827717662, -0.8086757660],
])  # fmt: skip
APART = 0.09
BLOCKS = [name for name in palette.COLORS if name not in ("none", "arrow", "changed")]
HOSTS = ("ACCEL", "CPU")  # compute in the host's memory
PAPERS = {"light": "#ffffff", "dark": "#171a21"}  # the page's --paper


def seen(color, sight):
    part = np.array([int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    linear = np.where(part <= 0.04045, part / 12.92, ((part + 0.055) / 1.055) ** 2.4)
    return LAB @ np.cbrt(LMS @ np.clip(SIGHTS[sight] @ linear, 0, 1))


@pytest.mark.parametrize("theme", PAPERS)
@pytest.mark.parametrize("sight", SIGHTS)
def test_blocks_are_told_apart(theme, sight):
    colors = {name: getattr(palette.COLORS[name], theme) for name in BLOCKS}
    far = {
        (a, b): float(np.linalg.norm(seen(colors[a], sight) - seen(colors[b], sight)))
        for a, b in itertools.combinations(BLOCKS, 2)
    }
    assert min(far.values()) > APART, min(far, key=far.get)


@pytest.mark.parametrize("theme", PAPERS)
def test_what_stands_on_a_colour_is_read(theme):
    assert f"--paper: {PAPERS[theme]};" in whole.part("page.css")
    for name, color in palette.COLORS.items():
        fill = getattr(color, theme)
        assert palette.contrast(palette.ink(fill), fill) >= 4.5, name
        if name != "none":  # the lanes' grounds are nearly that, and it stands for nothing
            assert palette.contrast(PAPERS[theme], fill) >= (1.7 if theme == "light" else 3), name
    for fill in palette.fills(llama(2)).values():
        assert palette.contrast("#041e49", palette.pale(fill)) >= 4.5  # Model Explorer's ink


def test_contrast_is_wcags():
    assert palette.contrast("#000000", "#ffffff") == pytest.approx(21)
    assert palette.contrast("#777777", "#ffffff") == pytest.approx(4.478, abs=0.001)


def planned(*kinds):
    """A plan of one node over backends of these types, each with memory of its own but those "in
    the host's", which share the CPU's."""
    last = len(kinds) - 1
    shared = sum(1 << i for i, k in enumerate(kinds) if k in HOSTS)
    bufts = tuple(BuftRecord(f"m{i}", i == last, shared if i == last else 1 << i)
                  for i in range(last + 1))  # fmt: skip
    backends = tuple(
        BackendRecord(f"B{i}", f"B{i}", k, last if k in HOSTS else i) for i, k in enumerate(kinds)
    )
    every = (1 << len(kinds)) - 1
    leaf = captures.tensor(1, "leaf", "inp", flags=("input",), supports=every)
    node = captures.tensor(0, "node", "y", "ABS", src=(1,), flags=("compute",), supports=every)
    return reference.plan(Capture(smallest().settings, backends, bufts, (), (node, leaf), (1,)))


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        (("GPU", "CPU"), ("b0", "host")),
        (("GPU", "GPU", "ACCEL", "CPU"), ("b0", "b1", "host2", "host")),
        (("ACCEL", "CPU"), ("b0", "host")),
        (("CPU",), ("b0",)),
        (("GPU",) * 8 + ("CPU",), (*palette.DEVICES, "host")),
        (("GPU",) * 9 + ("CPU",), (*palette.DEVICES, "b0", "host")),
    ],
)
def test_the_colours_of_backends(kinds, expected):
    assert palette.lanes(planned(*kinds)) == expected


def test_a_log_has_colours():
    plan = ggml.Plan.from_debug_log(llama(2).text())
    assert palette.lanes(plan) == ("b0", "host")


def test_eight_cards_and_the_cpu_have_a_colour_each():
    for plan in (planned(*["GPU"] * 8, "CPU"), spread(8)):
        assert len(set(palette.lanes(plan))) == len(set(palette.fills(plan).values())) == 9


def test_every_picture_has_them():
    plan = llama(4)
    fills = palette.fills(plan)
    dot, explorer = to_dot.render(plan), to_model_explorer.render(plan)
    page = to_html.render(plan)
    backends = page_data.data(plan)["backends"]
    for name, backend in zip(fills, backends, strict=True):
        assert f'[label="{name}", fillcolor="{fills[name]}"' in dot
        assert f"--{backend['color']}: {fills[name]};" in page
    nodes = explorer["graphs"][0]["nodes"]
    assert {n["style"]["backgroundColor"] for n in nodes} == set(map(palette.pale, fills.values()))
