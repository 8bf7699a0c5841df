"""Plans from a header alone: of a file that ends after it, and of an address; libllama or not."""

import shutil
import subprocess
import sys

import pytest

from ggml_py import Gguf, llama, models
from ggml_py.errors import GgufError, ModelError, NotBuiltError
from ggml_py.gguf.remote import header_of
from ggml_py.llama import library
from ggml_py.models.synthetic import LlamaSpec, write_llama

from ..support.served import serving
from ..support.split_files import split


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A model of 4 MB, and below it one in two parts."""
    folder = tmp_path_factory.mktemp("served")
    write_llama(folder / "model.gguf", LlamaSpec())
    return folder / "model.gguf"


@pytest.fixture
def cut(whole, tmp_path):
    """The same, up to the end of its header."""
    with Gguf.open(whole) as gguf:
        n = gguf.data_offset
    path = tmp_path / "cut.gguf"
    path.write_bytes(whole.read_bytes()[:n])
    return path


@pytest.fixture(autouse=True)
def few_bytes(monkeypatch):
    """Ranges that are shorter than the header."""
    monkeypatch.setattr("ggml_py.gguf.remote.PIECE", 1 << 10)


def test_a_file_that_ends_after_its_header_plans_and_does_not_run(whole, cut):
    with models.load(whole) as one, models.load(cut, header_only=True) as other:
        assert one.plan(31).text() == other.plan(31).text()
        assert one.memory == other.memory
        with pytest.raises(ModelError, match="ends before its weights do"):
            other.eval([1])
    with pytest.raises(GgufError, match="is truncated"):
        models.load(cut)
    with pytest.raises(GgufError, match="is truncated"):
        llama.open(cut, header_only=False)


def test_a_header_that_is_cut_off_says_so(cut, tmp_path):
    short = tmp_path / "short.gguf"
    short.write_bytes(cut.read_bytes()[:-5000])
    with pytest.raises(GgufError, match=r"takes .* bytes from byte .*, the file has"):
        models.load(short, header_only=True)


@pytest.mark.parametrize("fault", [(), ("drops once",)])
def test_an_address_is_read_as_far_as_its_header_goes(whole, cut, fault, monkeypatch):
    if fault:
        monkeypatch.setattr("ggml_py.gguf.remote.PIECE", 1 << 17)
    with serving(whole.parent, *fault) as (address, server):
        with models.load(address) as model, models.load(whole) as local:
            assert model.plan(31).text() == local.plan(31).text()
            with pytest.raises(ModelError, match=r"http.*only its header was read"):
                model.eval([1])
        assert cut.stat().st_size <= server.sent < 3 * cut.stat().st_size < whole.stat().st_size
        if fault:  # it went on where it broke off
            assert server.asked[:2] == ["bytes=0-131071", "bytes=65536-131071"]


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("no ranges", "does not send parts of a file, .* cost the whole file, 4,[0-9,]+ bytes"),
        ("drops", r"cannot be read \(4 tries\): .*IncompleteRead"),
        ("wrong place", "was asked for bytes from 0 and sends 'bytes 1-"),
        ("grows", "the file changed while it was read"),
    ],
)
def test_what_a_server_does_wrong(whole, fault, said):
    with (
        serving(whole.parent, fault) as (address, _server),
        pytest.raises(GgufError, match=said),
    ):
        models.load(address)


def test_no_such_file_and_no_such_server(whole):
    with (
        serving(whole.parent) as (address, _server),
        pytest.raises(GgufError, match="the server answers 404"),
    ):
        models.load(address.replace("model", "other"))
    with pytest.raises(GgufError, match=r"cannot be read \(4 tries\)"):
        models.load(address)  # it is gone


def test_what_is_not_a_model(whole):
    (whole.parent / "page.gguf").write_text("<html>" * 1000)
    with serving(whole.parent) as (address, server):
        with pytest.raises(GgufError, match="GGUF"):
            models.load(address.replace("model", "page"))
        assert server.sent <= 1 << 10


def test_a_certificate_that_is_not_valid(whole, tmp_path):
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl makes the certificate")
    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    subprocess.run(
        [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj",
         "/CN=127.0.0.1", "-keyout", key, "-out", cert],
        check=True, capture_output=True,
    )  # fmt: skip
    with (
        serving(whole.parent, certificate=(cert, key)) as (address, _server),
        pytest.raises(GgufError, match="its certificate is not valid"),
    ):
        models.load(address)


def test_all_parts_of_a_split_model_are_read_and_missing_ones_named(whole, tmp_path):
    parts = split(whole, tmp_path, 3)
    address_of = parts[0].name
    with serving(tmp_path) as (address, server):
        address = address.replace("model.gguf", address_of)
        with models.load(address) as model, models.load(whole) as local:
            assert model.plan(1).text() == local.plan(1).text()
        assert server.sent < whole.stat().st_size / 2
        parts[1].unlink()
        with pytest.raises(GgufError, match=r"-00002-of-00003\.gguf: the server answers 404"):
            models.load(address)


def test_the_command_line_reads_addresses(whole):
    with serving(whole.parent) as (address, _server):
        done = run("plan", address)
        local = run("plan", whole)
        assert (done.returncode, done.stdout) == (0, local.stdout), done.stderr
        done = run("generate", address, "--tokens", 1)
        assert done.returncode == 1 and "only its header was read" in done.stderr


def test_the_temporary_files_go(whole, monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with serving(whole.parent) as (address, _server):
        with header_of(address) as path:
            assert path.stat().st_size == whole.stat().st_size
            assert path.stat().st_blocks * 512 < whole.stat().st_size / 2  # sparse
        assert not list(tmp_path.iterdir())
        models.load(address).close()
        with pytest.raises(ModelError):
            models.load(address, n_ctx=-1)
    assert not list(tmp_path.iterdir())


# --- who builds the graphs


def run(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "ggml_py", *map(str, arguments)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_graphs_are_ours_or_libllamas(whole):
    with pytest.raises(ModelError, match=r"graphs='theirs': expected one of 'auto', 'ours'"):
        models.load(whole, graphs="theirs")
    with pytest.raises(ModelError, match=r"split_mode='row': our own graphs know 'layer'"):
        models.load(whole, graphs="ours", split_mode="row")
    with models.load(whole) as model:
        assert model.graphs == "ours" and "libllama" not in model.plan(1).headline()
        assert model.metadata["general.architecture"] == "llama" and model.path == whole
        assert len(model.vocab) == 8192 and model.vocab[1] == "<s>"


@pytest.fixture
def not_built(monkeypatch):
    """As on a machine where libllama was not built, and cannot be."""
    monkeypatch.setattr(library, "_loaded", [])
    monkeypatch.setattr(library, "folder_of", lambda *_arguments, quiet=False: None)


def test_without_libllama_an_error_says_how_to_get_it(whole, not_built):
    with pytest.raises(NotBuiltError, match=r"is not there yet: `ggml-py build --llama --on "):
        models.load(whole, graphs="libllama", build=False)
    with pytest.raises(NotBuiltError, match=r"could not be built.*--config-settings llama=1"):
        models.load(whole, graphs="libllama")
    with pytest.raises(NotBuiltError), llama.Tokenizer.open(whole):
        pass


def test_our_own_activations_are_watched(whole):
    with models.load(whole, repack=False) as model:
        plain = model.eval([1, 2, 3])
        model.reset()
        logits, found = model.eval([1, 2, 3], watch=["l_out-*", "result_norm"])
        assert (logits == plain).all()
        assert sorted(found) == ["l_out-0", "l_out-1", "l_out-2", "l_out-3", "result_norm"]
        assert found["l_out-0"].shape == (3, 256)
        with pytest.raises(TypeError, match="expected a list of names"):
            model.eval([1], watch="l_out-0")
        assert model.eval([4]).shape == plain.shape
