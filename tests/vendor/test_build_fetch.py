"""Downloads from a real index on loopback: checked, cached, unpacked safely, or refused clearly."""

from __future__ import annotations

import shlex
import socket
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from vendor import fetch
from vendor.report import BuildError

from ..support.build_support import Index, Pin, index, pin_of, small_disk, small_sdist

SDIST = small_sdist({"small-1.0/llama.cpp/ggml/a.c": b"int a;", "small-1.0/setup.py": b"boom"})


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch):
    with index() as state:
        monkeypatch.setenv("PIP_INDEX_URL", state.url)
        yield state


def serve(server: Index, content: bytes = SDIST) -> Pin:
    pin = pin_of(content)
    server.files[pin.file] = content
    return pin


def test_a_file_is_fetched_once_then_found(server: Index, tmp_path: Path) -> None:
    pin = serve(server)
    assert not fetch.downloaded(pin, tmp_path)
    path = fetch.download(pin, tmp_path)
    assert path.read_bytes() == SDIST
    asked = len(server.asked)
    assert fetch.download(pin, tmp_path) == path
    assert len(server.asked) == asked == 2          # the project's page and the file
    assert [one.name for one in path.parent.iterdir()] == [pin.file]


def test_hash_mismatch_keeps_the_file_aside(server: Index, tmp_path: Path) -> None:
    pin = serve(server)
    server.files[pin.file] = SDIST + b"x"
    with pytest.raises(BuildError, match="hash mismatch") as caught:
        fetch.download(pin, tmp_path)
    bad = tmp_path / "downloads" / (pin.file + ".bad")
    assert str(bad) in str(caught.value)
    assert pin.sha256 in str(caught.value)
    assert bad.read_bytes() == SDIST + b"x"
    assert list(bad.parent.iterdir()) == [bad]


def test_a_damaged_cached_file_is_set_aside_then_fetched_anew(
    server: Index, tmp_path: Path
) -> None:
    pin = serve(server)
    path = fetch.download(pin, tmp_path)
    path.write_bytes(b"damaged")
    with pytest.raises(BuildError, match="hash mismatch"):
        fetch.download(pin, tmp_path)
    assert fetch.download(pin, tmp_path).read_bytes() == SDIST


def test_no_index_and_nothing_cached(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with socket.socket() as taken:      # bound and not listening: refused at once
        taken.bind(("127.0.0.1", 0))
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{taken.getsockname()[1]}/simple/")
        with pytest.raises(BuildError, match=r"small 1\.0 is not cached and the package index "
                                             r"cannot be reached.*PIP_INDEX_URL"):
            fetch.download(pin_of(SDIST), tmp_path)
    assert list((tmp_path / "downloads").iterdir()) == []


def test_a_cached_file_needs_no_index(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple/")
    pin = pin_of(SDIST)
    (tmp_path / "downloads").mkdir()
    (tmp_path / "downloads" / pin.file).write_bytes(SDIST)
    assert fetch.download(pin, tmp_path).read_bytes() == SDIST


def test_an_index_that_hangs_up_leaves_nothing(server: Index, tmp_path: Path) -> None:
    pin = serve(server, small_sdist({"small-1.0/big": bytes(range(256)) * 4000}))
    server.cut = True
    with pytest.raises(BuildError, match=r"not cached|hash mismatch"):
        fetch.download(pin, tmp_path)
    assert not fetch.downloaded(pin, tmp_path)


def test_an_index_without_the_file_or_the_project(server: Index, tmp_path: Path) -> None:
    pin = serve(server)
    server.files["small-2.0.tar.gz"] = server.files.pop(pin.file)
    with pytest.raises(BuildError, match=r"has no file small-1\.0\.tar\.gz"):
        fetch.download(pin, tmp_path)
    with pytest.raises(BuildError, match="does not know other"):
        fetch.download(pin_of(SDIST, "other"), tmp_path)


def test_pips_configuration_is_read_as_pip_reads_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("PIP_INDEX_URL", "PIP_CONFIG_FILE", "PIP_TIMEOUT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    user = tmp_path / "config" / "pip" / "pip.conf"
    user.parent.mkdir(parents=True)
    user.write_text("[global]\nindex-url = http://user.invalid/simple/\ntimeout = 7\n")
    assert fetch.pip_setting("index-url") == "http://user.invalid/simple/"
    own = tmp_path / "own.conf"
    own.write_text("[global]\nindex-url = http://own.invalid/simple/\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(own))
    assert fetch.pip_setting("index-url") == "http://own.invalid/simple/"
    assert fetch.pip_setting("timeout") == "7"
    monkeypatch.setenv("PIP_INDEX_URL", "http://env.invalid/simple/")
    assert fetch.pip_setting("index-url") == "http://env.invalid/simple/"


@pytest.fixture(params=["data filter", "none"])
def python(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pythons with tarfile's filters, and those before 3.10.12 and 3.11.4."""
    if request.param == "none":
        monkeypatch.delattr(tarfile, "data_filter", raising=False)
    elif not hasattr(tarfile, "data_filter"):
        pytest.skip("this Python has no filters")


@pytest.mark.usefixtures("python")
def test_unpacking_takes_the_subfolder_and_what_is_wanted(tmp_path: Path) -> None:
    archive = tmp_path / "small.tar.gz"
    archive.write_bytes(small_sdist({
        "small-1.0/llama.cpp/ggml/src/a.c": b"a", "small-1.0/llama.cpp/LICENSE": b"l",
        "small-1.0/llama.cpp/models/big.gguf": b"m", "small-1.0/setup.py": b"s"}))
    final = fetch.unpack_sdist(archive, "llama.cpp", tmp_path / "out", fetch.keep_ggml, "small")
    files = {str(one.relative_to(final)) for one in final.rglob("*") if one.is_file()}
    assert files == {"ggml/src/a.c", "LICENSE"}


@pytest.mark.usefixtures("python")
@pytest.mark.parametrize(("members", "links"), [
    ({"p/llama.cpp/../../../evil": b"x"}, {}),
    ({"p/llama.cpp/ok": b"x"}, {"p/llama.cpp/link": "/etc/passwd"}),
    ({"p/llama.cpp/ok": b"x"}, {"p/llama.cpp/link": "../../../outside"}),
])
def test_an_archive_that_reaches_outside_is_refused(
    tmp_path: Path, members: dict[str, bytes], links: dict[str, str]
) -> None:
    archive = tmp_path / "evil.tar.gz"
    archive.write_bytes(small_sdist(members, links))
    final = tmp_path / "deep" / "er" / "out"
    with pytest.raises(BuildError, match="unsafe to unpack"):
        fetch.unpack_sdist(archive, "llama.cpp", final, fetch.keep_all, "evil")
    assert not final.exists()
    assert list(final.parent.iterdir()) == []
    assert not (tmp_path / "evil").exists()


def test_a_wrong_subfolder_is_said(tmp_path: Path) -> None:
    archive = tmp_path / "small.tar.gz"
    archive.write_bytes(SDIST)
    with pytest.raises(BuildError, match=r"no folder thirdparty.*upstream\.toml"):
        fetch.unpack_sdist(archive, "thirdparty", tmp_path / "out", fetch.keep_all, "small")


def test_the_wheel_of_openblas(tmp_path: Path) -> None:
    archive = tmp_path / "blas-1.whl"
    with zipfile.ZipFile(archive, "w") as wheel:
        for name in ("blas/lib/lib.so", "blas/include/cblas.h", "blas/__init__.py",
                     "blas-1.dist-info/licenses/LICENSE.txt", "blas/lib/../../../evil"):
            wheel.writestr(name, name)
    final = fetch.unpack_wheel(archive, "blas", tmp_path / "out")
    files = {str(one.relative_to(final)) for one in final.rglob("*") if one.is_file()}
    assert files == {"lib/lib.so", "include/cblas.h", "licenses/LICENSE.txt"}
    assert not (tmp_path / "evil").exists()


def test_disk_full_while_downloading(server: Index, tmp_path: Path) -> None:
    content = small_sdist({"small-1.0/x": b""}) + b"\0" * 3_000_000
    pin = serve(server, content)
    with small_disk(tmp_path / "disk", 1) as disk:
        with pytest.raises(BuildError, match=r"disk full while downloading small.*--cache"):
            fetch.download(pin, disk)
        assert list((disk / "downloads").iterdir()) == []


def test_disk_full_while_unpacking(tmp_path: Path) -> None:
    archive = tmp_path / "small.tar.gz"
    archive.write_bytes(small_sdist({"p/llama.cpp/x": b"\0" * 3_000_000}))
    with small_disk(tmp_path / "disk", 1) as disk:
        with pytest.raises(BuildError, match="disk full while unpacking small"):
            fetch.unpack_sdist(archive, "llama.cpp", disk / "out", fetch.keep_all, "small")
        assert list(disk.iterdir()) == []


def test_a_file_size_limit_reads_as_a_full_disk(server: Index, tmp_path: Path) -> None:
    """`ulimit -f`, so that a machine where we may not mount tries this path too."""
    pin = serve(server, SDIST + b"\0" * 3_000_000)
    code = (
        f"import sys; sys.path[:] = {sys.path!r}\n"
        "from pathlib import Path\nfrom tests.support.build_support import Pin\n"
        "from vendor import fetch, report\n"
        f"try: fetch.download({pin!r}, Path({str(tmp_path)!r}))\n"
        "except report.BuildError as error: print(error)\n"
    )
    done = subprocess.run(
        ["bash", "-c", 'ulimit -f 1000; exec "$0" -c "$1"', sys.executable, code],
        capture_output=True, text=True, check=False)
    assert done.stdout.startswith("disk full while downloading"), done.stdout + done.stderr


def test_without_its_module_it_says_a_line_that_pip_takes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "pypi_simple", None)
    with pytest.raises(BuildError, match="needs the module pypi_simple") as caught:
        fetch.download(pin_of(SDIST), tmp_path)
    words = shlex.split(str(caught.value).partition("python -m ")[2])
    assert words[:2] == ["pip", "install"] and len(words) == 2 + len(fetch.NEEDS)
    for word in words[2:]:
        Requirement(word)  # raises if pip would refuse it
