"""Generated files are fresh; every function of ggml's headers is bound, or waived with a reason."""

import inspect
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import ggml_py as ggml
from ggml_py import builds as _builds
from ggml_py import enums
from ggml_py.boundary.ffi import BUILD, lib
from ggml_py.graphs import ops

REPO = Path(__file__).parents[2]
REPORT = json.loads((BUILD["folder"] / "bindings.json").read_text())
HEADERS = (
    "ggml.h", "ggml-alloc.h", "ggml-backend.h", "ggml-cpu.h", "gguf.h",
    "ggml-opt.h", "ggml-blas.h", "ggml-rpc.h",
)  # fmt: skip


@pytest.mark.needs(release="default")
@pytest.mark.parametrize(
    ("path", "name"), [("builds/default_enums.py", "enums.py"), ("graphs/ops.py", "ops.py")]
)
def test_committed_files_are_what_the_build_generated(path, name):
    committed = (REPO / "ggml_py" / path).read_text()
    generated = (BUILD["folder"] / name).read_text()
    assert committed == generated, f"ggml_py/{path} is stale: `make build` copies {name} there"


def test_every_header_is_read_and_every_function_counted():
    assert tuple(REPORT["bound"]) == HEADERS
    assert all(REPORT["bound"].values())
    n_bound = sum(map(len, REPORT["bound"].values()))
    assert REPORT["n_bound"] == n_bound
    assert REPORT["n_declared"] == n_bound + len(REPORT["waived"])
    assert all(reason for reason in REPORT["waived"].values())


@pytest.fixture(scope="session")
def upstream_include() -> Path:
    """The include folder of the pinned release, from the user's cache."""
    from vendor import cache, identity, releases

    folder = cache.default_folder()
    with cache.Lock(folder):
        return identity.unpacked(releases.default(), folder, whole=False) / "ggml" / "include"


@pytest.mark.needs(release="default")
def test_the_count_agrees_with_a_plain_search_of_the_headers(upstream_include):
    """Bindgen parses C; this takes the names before parentheses in declarations that say API."""
    found = set()
    for name in HEADERS:
        text = (upstream_include / name).read_text()
        text = re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.S)
        text = re.sub(r"^\s*#[^\n]*$", "", text, flags=re.M)
        for declaration in re.findall(r"GGML(?:_BACKEND)?_API\b[^;]*;", text):
            found.add(re.search(r"\b(g(?:gml|guf)_\w+)\s*\(", declaration)[1])
    known = {f for functions in REPORT["bound"].values() for f in functions}
    assert len(found) > 600
    assert found == known | set(REPORT["waived"])


def test_every_bound_function_is_there_and_callable():
    for functions in REPORT["bound"].values():
        for name in functions:
            assert callable(getattr(lib, name)), name


def test_every_bound_function_is_defined_by_the_libraries():
    """Bound functions are weak references: one that no library defines would be found here."""
    nm = shutil.which("nm")
    if nm is None:
        pytest.skip("nm (binutils) is not installed")
    defined = set()
    for library in BUILD["folder"].glob("libggml*"):
        done = subprocess.run([nm, "-D", "--defined-only", library], capture_output=True, text=True)
        defined |= {line.split()[-1].split("@")[0] for line in done.stdout.splitlines() if line}
    bound = {f for functions in REPORT["bound"].values() for f in functions}
    assert bound - defined == set()


def test_waived_functions_are_not_bound():
    for name in REPORT["waived"]:
        assert not hasattr(lib, name)


def test_ops_are_methods_with_upstreams_names_and_a_docstring_with_the_prototype():
    assert len(REPORT["ops"]) > 150
    for function, method in REPORT["ops"].items():
        doc = inspect.getdoc(getattr(ggml.Context, method))
        assert function in doc and "C: ggml_tensor *" in doc, method


def test_ops_that_take_what_a_plain_method_cannot_are_methods_by_hand():
    assert set(REPORT["ops_by_hand"]) & set(REPORT["ops"]) == set()
    for function, reason in REPORT["ops_by_hand"].items():
        assert reason.startswith("takes ")
        assert function in inspect.getdoc(getattr(ggml.Context, function.removeprefix("ggml_")))


def test_enums_have_the_compilers_values():
    checks = {
        enums.Type: "GGML_TYPE_", enums.Op: "GGML_OP_", enums.UnaryOp: "GGML_UNARY_OP_",
        enums.GgufType: "GGUF_TYPE_", enums.BackendDevType: "GGML_BACKEND_DEVICE_TYPE_",
        enums.BackendBufferUsage: "GGML_BACKEND_BUFFER_USAGE_", enums.Status: "GGML_STATUS_",
        enums.TensorFlag: "GGML_TENSOR_FLAG_",
    }  # fmt: skip
    for enum, prefix in checks.items():
        for member in enum:
            assert getattr(lib, prefix + member.name) == member.value, member


@pytest.mark.needs(release="default")
def test_the_pin_is_the_one_in_the_table(upstream_include):
    from vendor import releases

    assert releases.default().ggml == enums.UPSTREAM


def test_selection_names_what_there_is(monkeypatch):
    assert _builds.select(BUILD["key"])["key"] == BUILD["key"]
    with pytest.raises(ggml.NotBuiltError, match=r"GGML_PY_UPSTREAM=0\.0\.1.*Present.*build"):
        _builds.select("0.0.1")
    monkeypatch.setattr(_builds, "LIB_DIR", Path("/nonexistent"))
    monkeypatch.setattr(sys, "path", [])  # nor an installed one
    with pytest.raises(ggml.NotBuiltError, match=r"python build_ggml\.py"):
        _builds.select(None)


def test_a_build_of_the_same_release_may_have_other_numbers(tmp_path):
    """A checkout (`--source`) whose version was not raised yet."""
    build = {"folder": tmp_path}
    (tmp_path / "enums.py").write_bytes(_builds.DEFAULT.read_bytes())
    assert _builds.generated(build, "enums.py", _builds.DEFAULT) == _builds.DEFAULT
    (tmp_path / "enums.py").write_text(_builds.DEFAULT.read_text().replace("ADD = 2", "ADD = 3"))
    assert _builds.generated(build, "enums.py", _builds.DEFAULT) == tmp_path / "enums.py"


def test_ops_module_is_a_mixin():
    assert issubclass(ggml.Context, ops.Ops)
