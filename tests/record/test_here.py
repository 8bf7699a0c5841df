"""Records of this process: `ggml_py.record`."""

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import ggml_py as ggml
from ggml_py.builds.processor import host
from ggml_py.errors import ArgumentError, BusyError
from ggml_py.export.json.values import from_json
from ggml_py.files.secrets import hidden
from ggml_py.models.synthetic import LlamaSpec, write_llama
from ggml_py.record.program_facts import made_at_start, made_by
from ggml_py.trace.provenance import DeviceMade, Provenance

from ..support import graphs
from ..support.own_records import computed, recorded


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("record") / "here.ggrec"
    recorded(path)
    return path


def test_each_plan_is_written_once_with_its_counts(path):
    record = ggml.Record.read(path)
    (process,) = record.processes
    assert (process.pid, process.ended, record.damage) == (os.getpid(), True, [])
    assert [(p.computed, p.allocated, p.planned) for p in record] == [(4, 2, 2), (0, 1, 1)]
    assert all(p.first <= p.last for p in record)
    assert len(process.schedulers) == 3  # the first two made the same plan


def test_whose_layout_a_graph_has(tmp_path):
    """A graph that fits into a larger one's reserved layout gets its memory there."""
    from ggml_py.boundary.ffi import ffi

    def made(ctx, n):
        x = ctx.new_tensor("f32", 64, n, name="x")
        x.set_input()
        graph = ctx.new_graph()
        graph.build_forward_expand(ctx.mul(ctx.sqr(x), x))
        return graph

    path = tmp_path / "layouts.ggrec"
    with (
        ggml.Context() as ctx, ggml.device("CPU").init() as cpu, ggml.record(path),
        ggml.Scheduler([cpu]) as scheduler,
    ):  # fmt: skip
        large, small, longer = made(ctx, 32), made(ctx, 8), made(ctx, 64)
        scheduler.reserve(large)
        scheduler.alloc_graph(small)
        at = int(ffi.cast("uintptr_t", small.nodes[-1].ptr.data))
        base = int(ffi.cast("uintptr_t", small.leafs[0].ptr.data))
        scheduler.reset()
        scheduler.alloc_graph(longer)
    first, second, third = ggml.Record.read(path)
    assert first.laid_out_as is None and first.kind == "reserved"
    assert second.laid_out_as is first and third.laid_out_as is third
    # Its own layout is smaller than the room that it has there.
    (own,), (given,) = second.plan.memory.buffers, first.plan.memory.buffers
    assert own.size == 2 * 64 * 8 * 4 and given.size == 4 * own.size
    places = {b.tensor: b.offset for b in given.blocks}
    assert at - base == places[1] - places[2]


def test_it_is_the_plan_that_the_scheduler_made(path):
    record = ggml.Record.read(path)
    for one, make in zip(record, (graphs.mlp, graphs.views), strict=True):
        case = make()
        plan = case.scheduler.plan(case.graph)
        assert one.plan.text() == plan.text()
        assert one.plan.outcome == plan.outcome
        assert one.plan.capture.tensors == plan.capture.tensors
        assert one.plan.reference == one.plan
        case.close()

def test_a_plan_knows_the_process_and_its_devices(path):
    plan = ggml.Record.read(path).plans[0].plan
    made, process = plan.provenance, ggml.Record.read(path).processes[0]
    assert (made.program, made.flags) == (process.program, process.argv[1:])
    assert made.processor == host() and made.date.startswith("20") and made.date.endswith("+00:00")
    assert [d.name for d in made.devices] == [b.device for b in plan.backends]
    cpu = made.device("CPU")
    assert cpu.description == ggml.device("CPU").description and cpu.memory_total > 0
    assert made.n_ctx is None and made.n_past is None and made.package is not None
    (said,) = plan.unknown
    assert said.startswith("how the plan was made is not recorded in full: ") and "context" in said


def test_an_older_record_knows_its_command_line(path):
    record = ggml.Record.read(path)
    head = record.processes[0].head
    del head["about"]["made"]
    head["argv"] = ["llama-bench", "-m", "/models/big.gguf", "-ngl", "9"]
    made = record.plans[0].plan.provenance
    assert (made.model, made.flags[-1], made.processor) == ("big.gguf", "9", None)
    assert {d.simulated for d in made.devices} == {None}
    head["about"]["made"] = {"model": 7}  # of a damaged file
    assert made_by(record.processes[0]).model == "big.gguf"


def test_the_model_of_a_program_is_the_one_in_its_command_line(tmp_path):
    write_llama(tmp_path / "m.gguf", LlamaSpec(n_layer=1, n_vocab=512))
    model = str(tmp_path / "m.gguf")
    card = DeviceMade("gpu0", card="rtx4090", simulated=True)
    for command in (["x", "-m", model], ["x", "--model", model], ["x", "run.py", model],
                    ["x", f"--model={model}"]):  # fmt: skip
        made = from_json(Provenance, made_at_start(command, {}, [card]))
        assert (made.model, made.architecture, made.devices) == ("m.gguf", "llama", (card,))
        assert made.model_bytes > 0 and len(made.header) == 64
    made = from_json(Provenance, made_at_start(["x"], {"LLAMA_ARG_MODEL": model}))
    assert made.model == "m.gguf"
    gone = from_json(Provenance, made_at_start(["x", "-m", str(tmp_path / "gone.gguf")], {}))
    assert (gone.model, gone.architecture, gone.header) == ("gone.gguf", None, None)
    assert from_json(Provenance, made_at_start(["x", "-v"], {})).model is None


def test_asking_is_not_recorded(tmp_path):
    with ggml.record(tmp_path / "x") as record:
        case = graphs.mlp()
        case.scheduler.plan(case.graph)
        case.close()
    assert (record.n_plans, len(record.read())) == (0, 0)


@pytest.mark.parametrize(
    ("options", "written", "left_out"),
    [({"first": 1}, 1, 1), ({"max_size": 14_000}, 1, 1)],
)
def test_bounds(tmp_path, options, written, left_out):
    record = recorded(tmp_path / "x", **options)
    assert (record.n_plans, record.left_out) == (written, left_out)
    assert [p.left_out for p in record.read().processes] == [left_out]


def test_every_second_plan_of_a_scheduler(tmp_path):
    cases = [graphs.mlp(), graphs.views()]
    with ggml.record(tmp_path / "x", every=2) as record, cases[0].scheduler as scheduler:
        for graph in (case.graph for case in (*cases, cases[0])):
            scheduler.reserve(graph)
    for case in cases:
        case.close()
    assert [(p.planned, p.n_nodes) for p in record.read()] == [(2, 3)]


def test_computes_with_their_times(tmp_path):
    run = recorded(tmp_path / "x", run=True).read().processes[0].run
    assert [len(s.plans) for s in run.schedulers] == [2, 2]
    assert all(c.plan is not None and c.splits for c in run.computes)
    assert "4 computes" in str(run.summary())


def test_computes_are_missing_without_run(path):
    with pytest.raises(ValueError, match="recorded with --run"):
        ggml.Record.read(path).processes[0].run  # noqa: B018


def test_lines_say_what_is_new(tmp_path, capfd):
    recorded(tmp_path / "x", lines=True)
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == 2
    assert "plan 0: 3 nodes, " in lines[0] and "the scheduler's first" in lines[0]


def test_a_name_in_a_line_cannot_control_the_terminal(tmp_path, capfd):
    def planned(ctx, scheduler, n):
        x = ctx.new_tensor("f32", n, name="in\x1b]0;t\x07\x9b8m \xa0é")
        x.set_input()
        graph = ctx.new_graph()
        graph.build_forward_expand(ctx.sqr(x))
        scheduler.alloc_graph(graph)

    with (
        ggml.Context() as ctx, ggml.device("CPU").init() as cpu,
        ggml.record(tmp_path / "x", lines=True), ggml.Scheduler([cpu]) as scheduler,
    ):  # fmt: skip
        planned(ctx, scheduler, 8)
        scheduler.reset()
        planned(ctx, scheduler, 16)
    said = capfd.readouterr().err
    assert "'in?]0;t???8m \xa0é' is [16" in said, said


@pytest.mark.thorough("long")
def test_a_record_has_no_keys_of_its_program(tmp_path):
    path = tmp_path / "x"
    program = (
        "import sys; sys.path.append(sys.argv[1])\nfrom tests.support.own_records import recorded\n"
        "recorded(sys.argv[2])"
    )
    words = [
        "--api-key", "k3y", "-hft", "k3y", "--hf-token=k3y", "-mu", "https://user:k3y@host:1/m.gguf",
        "host?api_key=k3y&n=2", "me:k3y@host:80", "ratio 16:9 @home", "https://host/a:b@c", "end",
    ]  # fmt: skip
    command = [sys.executable, "-c", program, str(Path(__file__).parents[2]), str(path), *words]
    subprocess.run(command, check=True)
    (process,) = ggml.Record.read(path).processes
    assert process.argv[-len(words):] == hidden(words)
    assert process.argv[-3:] == ("ratio 16:9 @home", "https://host/a:b@c", "end")
    assert b"k3y" not in path.read_bytes()


def test_a_file_that_is_there_stays(tmp_path):
    path = tmp_path / "x"
    path.write_text("mine")
    with pytest.raises(ArgumentError, match="exists"), ggml.record(path):
        pass
    assert path.read_text() == "mine"
    recorded(path, force=True)
    assert len(ggml.Record.read(path)) == 2


def test_one_record_at_a_time(tmp_path):
    with (
        ggml.record(tmp_path / "a"),
        pytest.raises(BusyError, match="being recorded already"),
        ggml.record(tmp_path / "b"),
    ):
        pass
    assert not (tmp_path / "b").exists()


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(OSError, match="No such file"), ggml.record(tmp_path / "no" / "x"):
        pass


def test_a_full_disk_ends_the_record_and_not_the_program(tmp_path, capfd):
    """A limit on the size of files stands for the disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    old = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    path = tmp_path / "x"
    try:
        with pytest.raises(OSError, match="File too large"):  # noqa: SIM117
            with ggml.record(path):
                resource.setrlimit(resource.RLIMIT_FSIZE, (9_000, before[1]))
                case = graphs.mlp()
                computed(case)
                case.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, old)
    assert "the record ends here, the program goes on" in capfd.readouterr().err
    found = ggml.Record.read(path)
    assert len(found) == 0 and found.damage[0].is_end
    recorded(tmp_path / "y")  # the next record works


def test_a_forked_child_goes_on_in_the_same_file(tmp_path):
    path = tmp_path / "x"
    with ggml.record(path):
        case = graphs.mlp()
        computed(case)
        child = os.fork()
        if not child:
            case.scheduler.compute(case.graph)
            other = graphs.views()
            other.scheduler.alloc_graph(other.graph)
            ggml.lib.gp_record_stop(ggml.ffi.new("uint64_t *"), ggml.ffi.new("uint64_t *"))
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        case.close()
    record = ggml.Record.read(path)
    assert [p.pid for p in record.processes] == [os.getpid(), child]
    # The child computes a graph that was planned before it began, and plans another.
    assert [[p.computed for p in one.plans.values()] for one in record.processes] == [[1], [1, 0]]
    assert all(p.ended for p in record.processes) and not record.damage


def test_a_graph_that_was_planned_before_the_record(tmp_path):
    case = graphs.mlp()
    computed(case)
    with ggml.record(tmp_path / "x") as record:
        case.scheduler.compute(case.graph)
        case.scheduler.compute(case.graph)
        (one,) = record.read()  # so far
        assert (one.computed, one.kind) == (2, "other")
    plan = case.scheduler.plan(case.graph)
    case.close()
    assert record.read().plans[0].plan.outcome == plan.outcome


def test_only_its_own_block_ends_a_record(tmp_path):
    with ggml.record(tmp_path / "a") as record:
        other = ggml.record(tmp_path / "a", force=True)
        with pytest.raises(BusyError), other:
            pass
        with pytest.raises(ArgumentError, match="has not begun"):
            other.__exit__(None, None, None)
        case = graphs.mlp()
        computed(case)
        case.close()
    assert record.n_plans == len(record.read()) == 1
