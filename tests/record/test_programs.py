"""Upstream's own programs, unmodified, recorded: what is recorded is what they do."""

import json
import os
import pty
import re
import signal
import subprocess
import time

import pytest

import ggml_py as ggml
from ggml_py.models.synthetic import LlamaSpec, write_llama
from ggml_py.record.programs import launch
from ggml_py.record.programs.identify import recorder_for, simulator_for
from ggml_py.record.programs.sim_devices import sims_text
from ggml_py.scheduler.replay import replay
from ggml_py.sim.given import named_devices
from ggml_py.trace.refusals import refused

from ..support import doc_pages
from ..support.cli_runs import COMMAND
from ..support.placements import blank

pytestmark = [pytest.mark.needs(release="default"), pytest.mark.thorough("programs")]
GPU = "sim:gpu0,profile=cuda"
BENCH = ("-p", 48, "-n", 4, "-r", 1, "-t", 2)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("programs") / "m.gguf"
    write_llama(path, LlamaSpec(n_layer=3, n_vocab=512))
    return path


@pytest.fixture(scope="module")
def recorder(oracle):
    return recorder_for(next(oracle.bin.resolve().parent.glob("lib/libggml-base.so")))


def record(path, program, *arguments, options=(), env=None, **settings):
    """`ggml-py record` of a program."""
    command = [*COMMAND, "record", "-o", path, *options, "--", program, *arguments]
    return subprocess.run(
        [*map(str, command)], capture_output=True, text=True, check=False, timeout=300,
        env={**os.environ, **(env or {})}, **settings,
    )  # fmt: skip


def alone(program, *arguments, env=None):
    return subprocess.run(
        [*map(str, (program, *arguments))], capture_output=True, text=True, check=False,
        timeout=300, env={**os.environ, **(env or {})},
    )  # fmt: skip


def printed(log):
    """All plans that GGML_SCHED_DEBUG=2 printed."""
    prints = re.findall(r"(?m)^(?:## SPLIT #.*|node #.*|)$", log)
    text = "\n".join(prints)
    parts = re.split(r"(?m)^(?=\n*## SPLIT #0)", text)
    return [blank(part) for part in parts if "## SPLIT #0" in part]


@pytest.mark.parametrize("ngl", [0, 2, 99])
def test_the_plans_are_those_that_an_unmodified_scheduler_prints(
    oracle, recorder, model, tmp_path, ngl
):
    """The same program with the same simulated GPU, and without a recorder."""
    bench = oracle.bin / "llama-bench"
    sims = {
        "GGML_BACKEND_PATH": str(simulator_for(recorder)), "GGML_PY_SIMS": sims_text([GPU]),
    }  # fmt: skip
    asked = ("-m", model, *BENCH, "-ngl", ngl)
    log = alone(bench, *asked, "-v", env={**sims, "GGML_SCHED_DEBUG": "2"}).stderr
    done = record(tmp_path / "x", bench, *asked, options=("-d", GPU))
    assert done.returncode == 0, done.stderr
    plans = ggml.Record.read(tmp_path / "x").plans
    texts = {blank(one.plan.text()) for one in plans}
    assert texts == set(printed(log)) and len(plans) >= 4
    assert all(one.plan.reference == one.plan for one in plans)
    assert any(one.n_splits > 1 for one in plans)


def test_a_replay_on_the_recorded_devices_is_the_recorded_plan(oracle, recorder, model, tmp_path):
    bench = oracle.bin / "llama-bench"
    assert record(tmp_path / "x", bench, "-m", model, *BENCH, "-ngl", 2, options=("-d", GPU))
    devices = [device for name in (GPU, "CPU") for device in named_devices(name)]
    with devices[0]:
        for one in ggml.Record.read(tmp_path / "x"):
            again = replay(one.plan, devices)
            assert again.plan.outcome == one.plan.outcome and not again.substitutes
            assert again.plan.capture.tensors == one.plan.capture.tensors


def test_a_record_knows_the_reasons(oracle, recorder, tmp_path):
    """Heads of 32 have no attention op on CUDA: a probe switches flash attention off. Pins, and
    the answers about the other card's memory, are in the record."""
    path = tmp_path / "heads.gguf"
    write_llama(path, LlamaSpec(n_layer=4, n_embd=128, n_head=4, n_head_kv=2, n_ff=256))
    cards = ("-d", GPU, "-d", GPU.replace("gpu0", "gpu1"))
    asked = ("-m", path, "-p", 16, "-n", 1, "-r", 1, "-t", 1, "-ngl", 99, "-fa", "auto")
    record(tmp_path / "x", oracle.bin / "llama-bench", *asked, options=cards)
    first, *later = ggml.Record.read(tmp_path / "x").plans
    probed = [n for n in first.plan.nodes if n.op == "FLASH_ATTN_EXT"]
    assert {refused(n, b).kind for n in probed for b in (0, 1)} == {"op"}
    assert not first.plan.choices and later
    for one in later:
        (choice,) = one.plan.choices
        assert choice.inferred and choice.node == probed[0].name and "of layer 0" in choice.why
        assert "does not support FLASH_ATTN_EXT" in choice.why
        pinned = {t.id for t in one.plan.capture.tensors if t.pin >= 0}
        assert pinned == {pin.tensor for pin in one.plan.capture.pins} and pinned
        weight = refused(one.plan.node("ffn_up-3"), 0)
        assert (weight.kind, weight.source.name) == ("memory", "blk.3.ffn_up.weight")


def test_output_and_exit_code_pass_through(oracle, model, tmp_path):
    for program, arguments in (
        ("llama-bench", ("-m", model, "-p", 8, "-n", 0, "-r", 1, "-o", "csv")),
        ("llama-bench", ("-m", tmp_path / "none")),
        ("llama-eval-callback", ("-m", model, "-p", "a", "-n", 1)),
        ("test-backend-ops", ("test", "-o", "SQR", "-b", "CPU")),
        ("test-llama-archs", ("-a", "llama", "-b", "CPU", "-s", 42)),
    ):
        path = oracle.bin / program
        own = alone(path, *arguments)
        done = record(tmp_path / "x", path, *arguments, options=("--force",))
        assert done.returncode == own.returncode
        if program in ("llama-bench", "test-backend-ops"):  # others' logs lose their last lines
            assert len(done.stdout.splitlines()) == len(own.stdout.splitlines())
        recorded = (tmp_path / "x").exists()
        assert recorded == (program not in ("test-backend-ops",) and own.returncode == 0), program


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGINT])
def test_a_program_that_is_killed_leaves_a_readable_record(oracle, model, tmp_path, number):
    """The signal is sent to us, and for SIGKILL to the program; we end as it ended."""
    path = tmp_path / "x"
    command = [*COMMAND, "record", "--run", "-o", path, "--", oracle.bin / "llama-bench",
               "-m", model, "-p", 16, "-n", 64, "-r", 10_000]  # fmt: skip
    with subprocess.Popen(
        [*map(str, command)], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    ) as process:
        while "plan 2" not in process.stderr.readline():
            pass
        time.sleep(1.5)  # counts are written once a second
        if number == signal.SIGKILL:
            pid = ggml.Record.read(path).processes[0].pid
            os.kill(pid, number)
        else:
            process.send_signal(number)
        process.communicate(timeout=60)
    assert process.returncode == -number
    found = ggml.Record.read(path)
    (one,) = found.processes
    assert not one.ended and not found.damage
    assert one.run.computes and max(p.computed for p in found) > 1
    assert all(p.plan.n_splits == 1 for p in found)


def test_a_full_disk_and_an_unwritable_path(oracle, recorder, model, tmp_path):
    bench = oracle.bin / "llama-bench"
    env = launch.environment(recorder, "/dev/full", launch.RecordOptions(), {})
    done = alone(bench, "-m", model, *BENCH, env=env)
    assert done.returncode == 0 and "No space left on device" in done.stderr
    assert "the program goes on" in done.stderr
    done = record(tmp_path / "no" / "x", bench, "-m", model, *BENCH)
    assert done.returncode == 1 and "No such file or directory" in done.stderr
    done = record(tmp_path, bench, "-m", model, *BENCH)
    assert done.returncode == 1 and "is a folder" in done.stderr
    record(tmp_path / "x", bench, "-m", model, *BENCH)
    kept = (tmp_path / "x").read_bytes()
    done = record(tmp_path / "x", bench, "-m", model, *BENCH)
    assert done.returncode == 1 and "exists, and another program may be writing" in done.stderr
    assert (tmp_path / "x").read_bytes() == kept


def test_services_by_the_environment(oracle, model, tmp_path):
    """Two programs at once, one of them after an exec, each with a file of its own."""
    bench = oracle.bin / "llama-bench"
    done = subprocess.run(
        [*COMMAND, "record", "--env", "-o", str(tmp_path / "plans"), "--", str(bench)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    words = " ".join(map(str, ("-m", model, *BENCH)))
    one = f"{bench} {words}"
    script = f'eval "$EXPORTS"\n{one} &\n({one}) &\nwait\nexec {one}'
    subprocess.run(
        ["bash", "-c", script], env={**os.environ, "EXPORTS": done.stdout}, check=True,
        capture_output=True,
    )  # fmt: skip
    files = sorted((tmp_path / "plans").iterdir())
    assert len(files) == 3 and all(f.name.startswith("llama-bench-") for f in files)
    assert len({ggml.Record.read(f).plans[-1].plan.text() for f in files}) == 1
    listed = subprocess.run(
        [*COMMAND, "record", "--of", str(tmp_path / "plans"), "--json"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert [len(one["plans"]) for one in json.loads(listed.stdout).values()] == [4, 4, 4]


def test_two_children_write_into_one_file(oracle, model, tmp_path):
    bench = oracle.bin / "llama-bench"
    words = " ".join(map(str, (bench, "-m", model, *BENCH)))
    done = record(
        tmp_path / "x", "bash", "-c", f"{words} & {words} & wait",
        options=("--library", oracle.bin.resolve().parent / "lib" / "libggml-base.so"),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = ggml.Record.read(tmp_path / "x")
    assert not found.damage and [len(p.plans) for p in found.processes] == [4, 4]
    assert len({p.pid for p in found.processes}) == 2


@pytest.mark.parametrize("opened", ["libggml.so", "libggml-base.so"])
def test_a_script_that_opens_ggml_itself(oracle, tmp_path, opened):
    """ctypes in a Python that is not ours, as packages do it. Asked by its path, the program's own
    ggml-base is loaded beside ours: both work on the same schedulers."""
    lib = oracle.bin.resolve().parent / "lib"
    script = tmp_path / "script.py"
    script.write_text(
        "import ctypes as C, sys\n"
        "C.CDLL(sys.argv[1] + '/libggml.so', mode=C.RTLD_GLOBAL)\n"
        "ggml = C.CDLL(sys.argv[1] + '/' + sys.argv[2])\n"
        "class P(C.Structure): _fields_ = [('n', C.c_size_t), ('b', C.c_void_p), ('a', C.c_bool)]\n"
        "cpu = C.CDLL(sys.argv[1] + '/libggml-cpu.so')\n"
        "def f(name, *types, of=ggml):\n"
        "    g = getattr(of, name); g.restype = C.c_void_p; g.argtypes = types; return g\n"
        "p, i = C.c_void_p, C.c_int64\n"
        "c = f('ggml_init', P)(P(1 << 20, None, True))\n"
        "x = f('ggml_new_tensor_2d', p, C.c_int, i, i)(c, 0, 8, 4)\n"
        "y = f('ggml_sqr', p, p)(c, x)\n"
        "g = f('ggml_new_graph', p)(c)\n"
        "f('ggml_build_forward_expand', p, p)(g, y)\n"
        "b = (p * 1)(f('ggml_backend_cpu_init', of=cpu)())\n"
        "s = f('ggml_backend_sched_new', p, p, C.c_int, C.c_size_t, C.c_bool, C.c_bool)(\n"
        "    b, None, 1, 64, False, True)\n"
        "f('ggml_backend_sched_alloc_graph', p, p)(s, g)\n"
        "f('ggml_backend_sched_graph_compute', p, p)(s, g)\n"
    )
    done = record(
        tmp_path / "x",
        "python3",
        script,
        lib,
        opened,
        options=("--library", lib / "libggml-base.so"),
    )
    assert done.returncode == 0, done.stderr
    (one,) = ggml.Record.read(tmp_path / "x")
    assert [(n.op, n.backend) for n in one.plan.nodes] == [("SQR", "CPU")] and one.computed == 1


def _as_a_terminal_starts():
    """A background job ignores them, and so would all that it starts."""
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def test_a_program_inherits_what_is_ignored_and_no_more(oracle, tmp_path):
    """At a terminal we leave Ctrl-C to the program, which must not find it ignored."""
    lib = oracle.bin.resolve().parent / "lib" / "libggml-base.so"
    names = ("SIGINT", "SIGQUIT", "SIGHUP")
    script = f"import signal; print([signal.getsignal(getattr(signal, n)) for n in {names}])"
    command = [*COMMAND, "record", "-q", "-o", tmp_path / "x", "--library", lib, "--", "python3",
               "-c", script]  # fmt: skip
    _terminal, stdin = pty.openpty()
    for before in ([], ["nohup"]):
        done = subprocess.run(
            [*map(str, (*before, *command))], stdin=stdin, capture_output=True, text=True,
            check=True, preexec_fn=_as_a_terminal_starts,
        )  # fmt: skip
        want = ["default_int_handler", "SIG_DFL", "SIG_IGN" if before else "SIG_DFL"]
        assert all(w in said for w, said in zip(want, done.stdout.split(", "), strict=True))


def test_the_record_is_never_written_into_other_files(oracle, model, tmp_path):
    """With standard error closed, and to a reader that is gone."""
    bench = oracle.bin / "llama-bench"
    words = " ".join(map(str, (*COMMAND, "record", "-o", "x", "--", bench, "-m", model, *BENCH)))
    for i, more in enumerate(("2>&-", "2> >(exec true)")):
        folder = tmp_path / str(i)
        folder.mkdir()
        done = subprocess.run(
            ["bash", "-c", f"{words} {more}"], cwd=folder, stdout=subprocess.PIPE, check=False
        )
        assert done.returncode == 0 and done.stdout.count(b"|") > 10
        assert not ggml.Record.read(folder / "x").damage


def test_a_limit_on_the_size_of_files_ends_the_record_only(oracle, model, tmp_path):
    words = " ".join(map(str, (oracle.bin / "llama-bench", "-m", model, *BENCH)))
    record_ = " ".join(map(str, (*COMMAND, "record", "-q", "-o", tmp_path / "x", "--")))
    done = subprocess.run(
        ["bash", "-c", f"ulimit -f 8; {record_} {words}"], capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0 and "File too large" in done.stderr and "tg4" in done.stdout


def _shell(oracle, folder):
    """Runs a command as a user's shell would, with the programs on its PATH."""
    path = f"{oracle.bin}{os.pathsep}{doc_pages.ENV['PATH']}"
    env = {**doc_pages.ENV, "PATH": path}
    return lambda command: subprocess.run(
        ["bash", "-c", command], cwd=folder, env=env, text=True, check=False,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    ).stdout  # fmt: skip


def _lasting(text):
    """Without times, process ids and sizes of files."""
    return re.sub(r" +[\d.]+ s  |\[\d+\](?= sched)|[\d,]+ bytes;", "", text).strip()


def test_the_readme_shows_what_happens(oracle, tmp_path):
    write_llama(tmp_path / "model.gguf", LlamaSpec())
    run = _shell(oracle, tmp_path)
    text = (doc_pages.DOCS.parent / "README.md").read_text()
    block = re.search(r"^```\n(\$ ggml-py record.*?)^```$", text, re.M | re.S)[1]
    parts = re.split(r"(?m)^\$ (.*)\n", block)[1:]
    assert len(parts) == 2
    for command, shown in zip(parts[::2], parts[1::2], strict=True):
        assert _lasting(run(command)) == _lasting(shown), command


def test_the_page_prints_what_is_shown(oracle, monkeypatch):
    (page,) = doc_pages.WITH_PROGRAMS
    path = f"{oracle.bin}{os.pathsep}{doc_pages.ENV['PATH']}"
    monkeypatch.setitem(doc_pages.ENV, "PATH", path)
    examples = doc_pages.examples(page)
    printed = doc_pages.run([code for code, _shown in examples])
    for (code, shown), said in zip(examples, printed, strict=True):
        lines = [line.rstrip() for line in said.splitlines()]
        assert lines == (shown or "").splitlines(), code
