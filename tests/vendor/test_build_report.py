"""What a build prints: the bars, the steps, and one line for each wall it runs into."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from vendor import report
from vendor.report import ANOTHER, BuildError, PlainBar, RichBar

from ..support import build_support  # noqa: F401  (puts the checkout on the path)


def test_the_plain_bar_in_a_pipe_speaks_four_times(capsys: pytest.CaptureFixture[str]) -> None:
    with PlainBar("file", 1000) as bar:
        for _ in range(100):
            bar.update(10)
    lines = capsys.readouterr().err.splitlines()
    assert [line.split()[-1] for line in lines] == ["25%", "50%", "75%", "100%"]


def test_a_bar_without_a_known_size_is_silent(capsys: pytest.CaptureFixture[str]) -> None:
    with PlainBar("file", None) as bar:
        bar.update(10)
    assert capsys.readouterr().err == ""


def test_the_rich_bar_counts() -> None:
    pytest.importorskip("rich")
    with RichBar("file", 100) as bar:
        bar.update(40)
        bar.update(60)
    assert bar.progress.finished


def test_a_step_says_its_time_only_when_it_succeeds(capsys: pytest.CaptureFixture[str]) -> None:
    with report.step("compiling"):
        pass
    with pytest.raises(ValueError, match="x"), report.step("installing"):
        raise ValueError("x")
    assert capsys.readouterr().err.splitlines() == [
        "compiling ...", "compiling: 0.0 s", "installing ..."]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_a_full_disk_is_one_line(code: int, tmp_path: Path) -> None:
    with pytest.raises(BuildError) as caught, report.writing("unpacking", tmp_path):
        raise OSError(code, "full")
    text = str(caught.value)
    assert text.startswith(f"disk full while unpacking in {tmp_path} (")
    assert "MB free there" in text
    assert text.endswith(f"free some space, or {ANOTHER}")


def test_other_errors_pass_through(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), report.writing("reading", tmp_path):
        (tmp_path / "nothing").read_text()
