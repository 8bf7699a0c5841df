"""The bar of a long loading: for who looks at a terminal, and for nobody else."""

import io
import sys

import pytest

from ggml_py.cli.shared import bar as bar_
from ggml_py.cli.shared import output
from ggml_py.cli.shared.bar import bar
from ggml_py.cli.shared.model_options import read_model
from ggml_py.models.synthetic import LlamaSpec, write_llama

from ..support.drawn_plans import smallest


class Terminal(io.StringIO):
    def isatty(self):
        return True


def look(monkeypatch):
    """Standard error is a terminal from now on (pytest puts its own there before each test); what
    is slow is not waited for."""
    monkeypatch.setattr(bar_, "_SLOW", 0.0)
    monkeypatch.setattr(bar_, "_PAUSE", 0.0)
    for name in ("NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", Terminal())
    return sys.stderr


def test_it_goes_from_0_to_100(monkeypatch):
    screen = look(monkeypatch)
    with bar("loading m.gguf") as show:
        for share in (0.0, 0.25, 1.0):
            show(share)
    text = screen.getvalue()
    assert "loading m.gguf" in text
    assert text.index(" 0%") < text.index(" 25%") < text.index("100%")


def test_what_is_quick_has_none(monkeypatch):
    screen = look(monkeypatch)
    monkeypatch.setattr(bar_, "_SLOW", 60.0)
    with bar("x") as show:
        show(0.5)
    assert screen.getvalue() == ""


def test_it_is_drawn_now_and_then_only(monkeypatch):
    screen = look(monkeypatch)
    monkeypatch.setattr(bar_, "_PAUSE", 60.0)
    with bar("x") as show:
        for i in range(100):
            show(i / 100)
    text = screen.getvalue()
    assert " 0%" in text and " 1%" not in text


@pytest.mark.parametrize(("limit", "is_said"), [(0, True), (60, False)])
def test_a_page_of_many_nodes_is_announced(monkeypatch, tmp_path, limit, is_said):
    screen = look(monkeypatch)
    monkeypatch.setattr(output, "_MANY", limit)
    output.save(smallest(), str(tmp_path / "a\x1b.html"))
    said = screen.getvalue()
    assert said.startswith(f"writing {tmp_path}/a\N{SYMBOL FOR ESCAPE}.html, ") == is_said
    assert said.endswith(" nodes ...\r\x1b[K") == is_said and bool(said) == is_said


def test_nobody_looks(monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with bar("x") as show:
        show(0.5)
    monkeypatch.setattr(sys, "stderr", Terminal())
    with bar("x", wanted=False) as show:
        show(0.5)
    assert sys.stderr.getvalue() == ""


@pytest.mark.parametrize("quiet", [True, False])
def test_a_model_is_read_with_one(monkeypatch, tmp_path, quiet):
    screen = look(monkeypatch)
    path = tmp_path / "m.gguf"
    write_llama(path, LlamaSpec(n_layer=1, n_vocab=512))
    with read_model(str(path), quiet, devices=("CPU",), overrides=(), n_threads=1) as model:
        assert model.weights._unread == []
    assert ("loading m.gguf" in screen.getvalue()) != quiet
