"""`ggml-py diverge`: two sides of a model, each op with the first side's inputs."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from ggml_py.boundary.ffi import ffi, lib
from ggml_py.builds import builds, current
from ggml_py.conformance.diverge import ModelSide, _divergence
from ggml_py.conformance.divergence import Divergence, limit_of
from ggml_py.conformance.forced import (
    FIRST,
    SECOND,
    _key,
    _plain,
    last_begun,
    read_rows,
    run_side,
)
from ggml_py.conformance.program import op_program
from ggml_py.models import load
from ggml_py.models.synthetic import LlamaSpec, write_llama
from ggml_py.record.op_tests import read_op_tests
from ggml_py.tensors.nmse import nmse

from ..support.cli_runs import fails, run

REPO = Path(__file__).resolve().parents[2]


def blocks():
    """The page's commands and what they print."""
    page = (REPO / "docs" / "CONFORMANCE.md").read_text()
    return re.findall(r"(?s)```\n\$ ggml-py (.*?)\n(.*?)```", page)


@pytest.fixture(scope="module")
def model_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("diverge") / "m.gguf"
    write_llama(path, LlamaSpec(n_layer=2, n_vocab=512))
    return path


# --- the measure


def test_the_error_is_upstreams():
    a, b = np.array([1.0, 2.0, 2.0]), np.array([1.0, 2.0, 2.3])
    assert nmse(a, b) == pytest.approx(0.09 / 9)
    assert nmse(b, a) == pytest.approx(0.09 / (1 + 4 + 2.3**2))
    assert nmse(a, a) == 0.0


@pytest.mark.parametrize(
    ("tested", "expected", "error"),
    [
        ([np.inf, 1], [np.inf, 1], 0.0),
        ([np.nan, 1], [np.nan, 1], 0.0),
        ([np.nan, 1], [0, 1], np.inf),
        ([1, 1], [np.nan, 1], np.inf),
        ([np.inf, 1], [-np.inf, 1], np.inf),
        ([-np.inf, 1], [1, 1], np.inf),
        ([0, 0], [0, 1], np.inf),
        ([-np.inf, 2], [-np.inf, 1], 0.25),
        ([], [], 0.0),
    ],
)
def test_the_error_of_what_is_not_finite(tested, expected, error):
    assert nmse(np.array(tested, np.float32), np.array(expected, np.float32)) == error


def test_limits():
    assert limit_of("MUL_MAT", []) == 5e-4
    assert limit_of("ADD", []) == 1e-7
    long = [(64, 1, 4, 1), (64, 40_000, 4, 1)]
    assert limit_of("FLASH_ATTN_EXT", long) == pytest.approx(1e-3)
    assert limit_of("FLASH_ATTN_EXT", [(64, 1, 4, 1), (64, 256, 4, 1)]) == 5e-4


@pytest.mark.thorough("programs")
def test_limits_are_upstreams():
    """Of the test of ops from a file, read out of upstream's source."""
    (source,) = (Path.home() / ".cache/ggml_py/sources").glob(
        f"{current()['label']}-*-whole/tests/test-backend-ops.cpp"
    )
    text = source.read_text().split("struct test_generic_op")[1].split("initialize_tensors")[0]
    switch = text.split("max_nmse_err() override")[1]
    for group, value in re.findall(r"((?:\s*case GGML_OP_\w+:)+)\s*return ([\d.e-]+);", switch):
        for op in re.findall(r"GGML_OP_(\w+)", group):
            assert limit_of(op, []) == float(value), op
    assert re.search(r"default:\s*return 1e-7", switch)
    assert "5e-4 * std::max(1.0, kv / 20000.0)" in switch


# --- a planted fault


def sides(model_file, folder, monkeypatch, wrong=None):
    """Both sides in this process, on the CPU; `wrong(node)` changes results of the second one."""
    for side in (FIRST, SECOND):
        with load(model_file, devices=("CPU",), n_threads=1) as model:
            if side == SECOND and wrong is not None:
                look_at = type(model).look_at_nodes

                def planted(model, look, look_at=look_at):
                    def both(node, ask):
                        if not ask:
                            wrong(node)
                        return look(node, ask)

                    both.begin = look.begin
                    return look_at(model, both)

                monkeypatch.setattr(type(model), "look_at_nodes", planted)
            run_side(model, side, folder, 8, 1)
    between = (ModelSide.parse("a"), ModelSide.parse("b"))
    return _divergence(between, folder, None)


def scaled(node, factor):
    """The data of an f32 node in its backend's memory, as a wrong kernel would leave it."""
    raw = np.empty(node.nbytes // 4, np.float32)
    lib.ggml_backend_tensor_get(node.ptr, ffi.from_buffer(raw), 0, raw.nbytes)
    raw *= np.float32(factor)
    lib.ggml_backend_tensor_set(node.ptr, ffi.from_buffer(raw), 0, raw.nbytes)


def test_equal_sides_are_equal(model_file, tmp_path, monkeypatch):
    found = sides(model_file, tmp_path, monkeypatch)
    assert not found and found.first is None
    assert all(node.error == 0.0 for node in found.nodes)
    assert found.unmatched == ((), ())
    # Of the embeddings' branches one is selected; the others, with DUP, are not computed.
    assert "DUP" not in {node.op for node in found.nodes}
    assert {node.graph for node in found.nodes} == {"prompt", "decode"}
    assert {node.layer for node in found.nodes} == {None, 0, 1}
    assert {node.backends for node in found.nodes} == {("CPU", "CPU")}


@pytest.mark.parametrize("op", ["RMS_NORM", "ROPE", "GLU", "ADD"])
def test_a_wrong_op_is_found_and_no_other(model_file, tmp_path, monkeypatch, op):
    def wrong(node):
        if node.op.name == op:
            scaled(node, 1.01)

    found = sides(model_file, tmp_path, monkeypatch, wrong)
    over = [node for node in found.nodes if node.wrong]
    # What follows has the first side's inputs: no other op differs by a bit.
    assert {node.op for node in over} == {"SWIGLU" if op == "GLU" else op}
    assert all(node.error == 0.0 for node in found.nodes if not node.wrong)
    assert found.first == over[0]
    assert found.first.error == pytest.approx((0.01 / 1.01) ** 2, rel=1e-3)
    assert len(over) > 2


def test_one_wrong_node_is_first_and_worst(model_file, tmp_path, monkeypatch):
    def wrong(node):
        if node.name == "ffn_out-1" or (node.name == "attn_norm-0" and node.op.name == "MUL"):
            scaled(node, 1.5 if node.name == "ffn_out-1" else 1.001)

    found = sides(model_file, tmp_path, monkeypatch, wrong)
    assert (found.first.name, found.first.layer, found.first.graph) == ("attn_norm-0", 0, "prompt")
    assert (found.worst.name, found.worst.layer) == ("ffn_out-1", 1)
    assert len([node for node in found.nodes if node.wrong]) == 4  # each in both graphs
    loose = Divergence(found.sides, tuple(n._replace(limit=1e-3) for n in found.nodes), ((), ()))
    assert loose.first.name == loose.worst.name == "ffn_out-1"
    assert "first: ffn_out-1 (MUL_MAT(" in str(loose)
    path = tmp_path / "case.txt"
    path.write_text(f"{loose.first.case}\n")
    (case,) = read_op_tests(path)
    assert (case.op, case.name, len(case.sources)) == ("MUL_MAT", "ffn_out-1", 2)
    assert json.loads(json.dumps(loose.to_dict()))["first"]["name"] == "ffn_out-1"


def test_nan_is_over_the_limit(model_file, tmp_path, monkeypatch):
    def wrong(node):
        if node.name == "ffn_out-0":
            scaled(node, np.nan)

    found = sides(model_file, tmp_path, monkeypatch, wrong)
    assert found.first.name == "ffn_out-0" and found.first.error == np.inf
    assert {node.name for node in found.nodes if node.wrong} == {"ffn_out-0"}
    assert found.to_dict()["first"]["error"] is None


def test_what_only_one_side_computes_is_told(model_file, tmp_path, monkeypatch):
    sides(model_file, tmp_path, monkeypatch)
    for side, name in ((FIRST, "ffn_out-0"), (SECOND, "ffn_out-1")):
        path = tmp_path / f"{side}.jsonl"
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        for row in rows:
            if side == SECOND and row.get("name") == name:
                del row["first"], row["error"], row["first_on"]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = _divergence((ModelSide.parse("a"), ModelSide.parse("b")), tmp_path, None)
    assert found.unmatched == (("ffn_out-1", "ffn_out-1"), ("ffn_out-1", "ffn_out-1"))
    assert "only a computes 2 nodes, not compared: ffn_out-1, ffn_out-1" in str(found)


def test_nodes_that_ggml_numbers_are_matched_by_their_sources(model_file, tmp_path, monkeypatch):
    found = sides(model_file, tmp_path, monkeypatch)
    rows = read_rows(tmp_path, FIRST)
    numbered = [row for row in rows if row["name"].startswith("node_")]
    assert numbered
    for row in numbered:
        assert _key(row) == _key({**row, "name": "node_9999"})
        assert _key(row) != _key({**row, "sources": ["other"]})
    assert _key(rows[0]) == _key({**rows[0], "sources": ["gpu0#x#0"]})
    assert _plain("gpu0#Qcur-0 (view)#0") == "Qcur-0 (view)" == _plain("Qcur-0 (view)")
    assert len({_key(row) for row in numbered if row["graph"] == "prompt"}) == len(numbered) // 2
    assert len(found.nodes) == len(rows)


def test_the_op_in_which_a_side_ended(model_file, tmp_path, monkeypatch):
    class EndError(Exception):
        pass

    def wrong(node):
        if node.name == "ffn_out-1":
            raise EndError

    with pytest.raises(EndError):
        sides(model_file, tmp_path, monkeypatch, wrong)
    assert last_begun(tmp_path, SECOND)["name"] == "ffn_out-1"
    assert last_begun(tmp_path, FIRST) is None
    assert read_rows(tmp_path, SECOND)[-1]["op"] == "GLU"


# --- what sides are


@pytest.mark.parametrize(
    ("text", "words", "release"),
    [
        ("CPU", ("-d", "CPU"), ""),
        ("BLAS,CPU threads=2", ("-d", "BLAS,CPU", "-t", "2"), ""),
        ("upstream=0.25.3", (), "0.25.3"),
        ("-ngl 9 sim:gpu0,profile=cuda CPU", ("-ngl", "9", "-d", "sim:gpu0,profile=cuda",
                                              "-d", "CPU"), ""),
        ("-nr -d CPU", ("-nr", "-d", "CPU"), ""),
    ],
)  # fmt: skip
def test_sides_are_understood(text, words, release):
    if text.startswith("-nr"):
        words = ("-nr", "-d", "CPU")
    side = ModelSide.parse(text)
    assert (side.words, side.release) == (words, release)


@pytest.mark.parametrize(
    ("between", "code", "says"),
    [
        ((), 2, "expected --between A B"),
        (("--between", "CPU", ""), 2, "expected devices (BLAS,CPU), threads=N"),
        (("--between", "CPU", "'"), 2, "No closing quotation: expected devices"),
        (("--between", "CPU", "threds=2"), 2, "threds=2 is unknown"),
        (("--between", "CPU", "source=/no/such"), 2, "/no/such is no folder"),
        (("--between", "CPU", "GPU7"), 1, "GPU7 does not run: "),
        (("--between", "CPU", "upstream=7.7.7", "--no-build"), 1, "7.7.7"),
        (("-d", "CPU", "--between", "CPU", "BLAS,CPU"), 2, "give them once"),
        (("--between", "CPU", "CPU", "-p", "600"), 1, "600"),
        (("--between", "CPU", "CPU", "--case", "/no/such/file"), 1, "there is no folder"),
    ],
)
@pytest.mark.thorough("long", quick=5)
def test_bad_input(model_file, between, code, says):
    assert says in fails("diverge", model_file, *between, code=code)


def test_a_file_that_is_no_model(tmp_path):
    (tmp_path / "x").write_text("x")
    assert "CPU does not run: " in fails("diverge", tmp_path / "x", "--between", "CPU", "CPU")


# --- whole runs


def test_blas_differs_from_the_cpu(model_file, tmp_path):
    """BLAS multiplies q4_0 as f32, the CPU rounds the other operand to q8_0 first."""
    given = ("--between", "CPU", "BLAS,CPU", "-p", 40, "--no-repack", "-n", 0, "--json")
    done = run("diverge", model_file, *given, "--limit", 1e-7, "--case", tmp_path / "case.txt")
    assert done.returncode == 1, done.stderr
    found = json.loads(done.stdout)
    assert found["first"]["backends"] == ["CPU", "BLAS"] and found["first"]["op"] == "MUL_MAT"
    over = [node for node in found["nodes"] if node["over"]]
    assert {node["backends"][1] for node in over} == {"BLAS"}
    assert read_op_tests(tmp_path / "case.txt")[0].op == "MUL_MAT"
    by_default = run("diverge", model_file, *given)
    assert by_default.returncode == 0, by_default.stderr


@pytest.mark.parametrize("how", ["", ",async=0", ",host"])
def test_a_wrong_kernel_of_a_simulated_device_is_found(model_file, how):
    side = f"sim:gpu0{how},wrong=RMS_NORM -ngl 99"
    done = run("diverge", model_file, "--between", "CPU", side, "--json")
    assert done.returncode == 1, done.stderr
    found = json.loads(done.stdout)
    assert (found["first"]["op"], found["first"]["name"]) == ("RMS_NORM", "norm-0")
    over = {node["name"] for node in found["nodes"] if node["over"]}
    on_gpu = [node for node in found["nodes"] if node["backends"][1] == "gpu0"]
    assert over == {node["name"] for node in on_gpu if node["op"] == "RMS_NORM"}


@pytest.mark.thorough("programs")
def test_a_wrong_kernel_is_found_in_a_graph_of_libllama(model_file):
    words = ("diverge", model_file, "--graphs", "libllama", "-c", "64", "--between", "CPU")
    done = run(*words, "sim:gpu0,wrong=RMS_NORM -ngl 99", "--json")
    assert done.returncode == 1, done.stderr
    found = json.loads(done.stdout)
    assert (found["first"]["op"], found["first"]["name"]) == ("RMS_NORM", "norm-0")
    over = [node for node in found["nodes"] if node["over"]]
    assert {(node["op"], node["backends"][1]) for node in over} == {("RMS_NORM", "gpu0")}
    assert len(over) == sum(node["op"] == "RMS_NORM" for node in found["nodes"])
    same = run(*words, "CPU threads=1")
    assert same.returncode == 0 and ": 0 of " in same.stdout


@pytest.mark.by_hand
def test_a_wrong_kernel_in_the_source_is_found(model_file, tmp_path):
    """A whole build of ggml whose RMS_NORM is off by one percent."""
    (source,) = (Path.home() / ".cache/ggml_py/sources").glob(f"{current()['label']}-*-ggml/ggml")
    shutil.copytree(source, tmp_path / "ggml")
    kernel = tmp_path / "ggml" / "src" / "ggml-cpu" / "ops.cpp"
    text, right = kernel.read_text(), "const float scale = 1.0f/sqrtf(mean + eps);"
    assert text.count(right) == 1
    kernel.write_text(text.replace(right, right.replace("1.0f", "1.01f")))
    try:
        done = run("diverge", model_file, "--between", "CPU", f"CPU source={tmp_path}", "--json")
        assert done.returncode == 1, done.stderr
        found = json.loads(done.stdout)
        assert (found["first"]["op"], found["first"]["name"]) == ("RMS_NORM", "norm-0")
        over = [node for node in found["nodes"] if node["over"]]
        assert {node["op"] for node in over} == {"RMS_NORM"}
        assert len(over) == sum(node["op"] == "RMS_NORM" for node in found["nodes"])
        release = current()["label"]
        words = ("--upstream", release, "--source", tmp_path, model_file, "-d", "CPU")
        done = run("compare", *words, "--json")
        assert done.returncode == 1, done.stderr
        (case,) = json.loads(done.stdout)["cases"]
        assert [change["kind"] for change in case["run"]] == ["output"]
        assert "is computed otherwise: error 0.0" in case["run"][0]["text"]
    finally:
        for build in builds():
            if not build.get("package", "?"):
                shutil.rmtree(build["folder"])


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """A folder with the case that the page's command writes, what it printed, what is shown."""
    folder = tmp_path_factory.mktemp("page")
    write_llama(folder / "model.gguf", LlamaSpec(n_layer=2, n_vocab=512))
    ((command, output),) = [(c, s) for c, s in blocks() if c.startswith("diverge")]
    words = [folder / w if w.startswith(("model.", "case.")) else w for w in command.split()]
    done = run(*words)
    assert done.returncode == 1, done.stderr
    return folder, done.stdout, output


def test_the_page_shows_what_happens(shown):
    _folder, printed, output = shown
    assert _counts(printed) == _counts(output)


def _counts(text):
    """Without errors, which the processor's rounding decides."""
    kept = [line.split(": error")[0] for line in text.splitlines() if "worst" not in line]
    return [line.split()[:3] if line[:1] not in "Bf" else line for line in kept]


@pytest.mark.thorough("programs")
def test_upstreams_program_reads_the_case(shown):
    folder, *_ = shown
    page = (REPO / "docs" / "CONFORMANCE.md").read_text()
    ((expected,),) = [re.findall(r"```\n\$ test-backend-ops .*\n(.*)\n```", page)]
    lines = []
    arguments = ("test", "-b", "BLAS", "--test-file", str(folder / "case.txt"))
    op_program(current()).run(arguments, lines.append)
    assert expected in [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in lines]
