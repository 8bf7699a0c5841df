"""what_if: the plan that ggml itself makes once the change is real, and errors for the others."""

import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, event, given, settings
from hypothesis import strategies as st

import ggml_py as ggml
from ggml_py.trace.reference import CannotPlanError

from ...support import random_graphs
from ...support.older_builds import build, run
from ...support.worlds import OPS, World, attention_with_sinks, living, plan

TREE = str(Path(__file__).parents[3])
RELEASE_0_17 = "b10068"

NET = World(
    recipe=(
        ("RMS_NORM", 0, 0), ("MUL_MAT", 1, 0), ("RELU", 2, 0), ("MUL_MAT", 3, 1), ("ADD", 4, 0),
        ("RMS_NORM", 5, 0), ("MUL_MAT", 6, 2), ("RELU", 7, 0), ("STORE", 8, 0), ("ADD", 5, 8),
    ),
    homes=(0, 0, 0, 0),
)  # fmt: skip
RELU_ON_CPU = replace(NET, refused=(frozenset({"UNARY"}),))


def same(what_if, native):
    """The same decisions, with their causes, and the same bytes."""
    assert what_if.outcome == native.outcome
    assert what_if.copy_bytes == native.copy_bytes
    assert what_if.planner == "reference"
    assert [t.supports for t in what_if.capture.tensors] == [
        t.supports for t in native.capture.tensors
    ]


def test_a_supported_op_takes_the_copies_away():
    before, after = plan(RELU_ON_CPU), plan(NET)
    changed = before.what_if(supports={("gpu0", "RELU"): True})
    same(changed, after)
    assert (before.n_splits, changed.n_splits) == (5, 1)
    assert changed.copy_bytes == before.copy_bytes - 4 * after.node("n2").nbytes
    same(after.what_if(supports={("gpu0", "UNARY"): False}), before)
    same(after.what_if(supports={("gpu0", "n2"): False, ("gpu0", "n7"): False}), before)
    same(before.what_if(), before)


def test_pins():
    before, after = plan(NET), plan(replace(NET, pins={"n2": "CPU", "n7": "CPU"}))
    for pins in ({"n2": "CPU", "n7": "CPU"}, {"n[27]": "CPU"}, {2: "CPU", "n7": "cpu"}):
        same(before.what_if(pins=pins), after)
    same(after.what_if(pins={"n2": None, "n7": None}), before)
    same(after.what_if(pins={"*": None}), before)


def test_a_pin_that_a_reset_dropped_is_made_again():
    with living(replace(NET, pins={"n2": "CPU"})) as (scheduler, graph):
        pinned = scheduler.plan(graph)
        scheduler.reset()
        after = scheduler.plan(graph)
    assert len(after.capture.dropped_pins) == 1
    again = after.what_if(pins={"n2": "CPU"})
    same(again, pinned)
    assert again.capture.dropped_pins == ()


def test_weights_and_the_cache_move_with_their_views():
    base = replace(NET, recipe=(*NET.recipe, ("MUL", 10, 1), ("LOAD", 0, 0), ("ADD", 11, 12)))
    before, after = plan(base), plan(replace(base, homes=(0, -1, 0, -1)))
    moved = before.what_if(move_weights={"w1": "CPU", "cache": "CPU"})
    same(moved, after)
    assert moved != before
    size = {b.usage: b.size for b in moved.buffers if b.buft == moved.backends[-1].buft}
    assert size == {"weights": moved.node("w1").nbytes, "any": moved.node("cache").nbytes}
    views = [t.id for t in before.leafs if t.name.startswith("w1 (")] or [
        n.id for n in before.nodes if n.view_src is not None and n.view_src.name == "w1"
    ]
    same(before.what_if(move_weights={views[0]: "CPU", "cache": "CPU"}), after)
    same(moved.what_if(move_weights={"*": "gpu0"}), before)


@pytest.mark.parametrize("n_tokens", [31, 48])
def test_op_offload_and_its_batch(n_tokens):
    host = replace(NET, n_tokens=n_tokens, homes=(-1, -1, -1, -1))
    before = plan(host)
    same(before.what_if(op_offload=False), plan(replace(host, op_offload=False)))
    same(before.what_if(offload={("gpu0", "*"): False}), plan(replace(host, batches=(0,))))
    for batch in (1, 32, 40, 64):
        same(before.what_if(offload={("gpu0", "*"): batch}), plan(replace(host, batches=(batch,))))
    assert (before.node("n1").backend == "gpu0") == (n_tokens == 48)
    assert before.what_if(offload={("gpu0", "MUL_MAT"): True}).node("n1").backend == "gpu0"


def test_without_a_backend():
    world = replace(NET, n_tokens=48, blas=True, homes=(-1, -1, -1, -1))
    before, after = plan(world), plan(replace(world, blas=False))
    same(before.what_if(drop=["BLAS"]), after)
    same(before.what_if(drop="BLAS"), after)
    alone = replace(world, refused=(None,), blas=False)
    same(before.what_if(drop=["BLAS", "gpu0"]), plan(alone))


def test_dropping_a_backend_takes_its_pins_and_needs_its_memory_moved():
    world = replace(NET, blas=True, pins={"n2": "gpu0", "n4": "CPU"})
    before = plan(world)
    with pytest.raises(CannotPlanError, match=r"can read gpu0 memory, which holds 'w0' and 3 more"):
        before.what_if(drop=["gpu0"])
    changed = before.what_if(drop=["gpu0"], move_weights={"*": "CPU"})
    native = replace(world, refused=(None,), homes=(-1,) * 4, pins={"n4": "CPU"})
    same(changed, plan(native))


@pytest.mark.parametrize("upstream", ["0.17.0", "0.24.0", "0.26.0"])
def test_copies_for_pipelines_say_so_by_the_rules_of_any_release(upstream):
    """Only a copy that is elsewhere than its original is there because that cannot be read."""
    found = plan(replace(NET, parallel=True)).what_if(upstream=upstream)
    kept = {c.name: c.cause.text for c in found.copies if c.cause.text.find("split") < 0}
    ours = [c for c in found.copies if c.name in kept]
    assert len(ours) == 4 and {c.backend for c in ours} == {"CPU"}
    codes = {c.cause.later or c.cause.code for c in ours}
    assert codes == {"6.cpy" if upstream == "0.26.0" else "4.cpy"}
    original, *others = ours
    assert original.record.kind == "leaf" and [c.record.kind for c in others] == ["copy"] * 3
    assert "the current one of its copies for pipeline" in kept[original.name]
    for other in others:
        assert kept[other.name] == (
            f"a copy of the graph input '{original.name}' for pipeline parallelism"
        )
        assert found.explain(other.name).links[0].text == kept[other.name]
    for_splits = [c for c in found.copies if c not in ours]
    assert for_splits and {c.backend for c in for_splits} == {"gpu0"}
    for copy in for_splits:
        assert copy.cause.text.endswith("made for a split on gpu0, which cannot read the original")


def test_pipeline_parallelism():
    same(plan(NET).what_if(parallel=True), plan(replace(NET, parallel=True)))
    same(plan(replace(NET, parallel=True)).what_if(parallel=False), plan(NET))


def test_the_rules_of_another_release():
    """llama.cpp #25800, in 0.18.0 no longer: flash attention followed its sinks to the GPU."""
    plans = {v: attention_with_sinks().what_if(upstream=v) for v in ("0.17.0", "0.18.0", "0.26.0")}
    fa = plans["0.17.0"].node("fa")
    assert (fa.backend, fa.cause.code) == ("gpu0", "1.off")
    assert fa.cause.witness.name == "blk.0.attn_sinks.weight"
    assert plans["0.17.0"].settings.release == "0.17.0"
    for version in ("0.18.0", "0.26.0"):
        assert plans[version].node("fa").backend == "CPU"
    assert plans["0.17.0"].copy_bytes > plans["0.18.0"].copy_bytes == 0


def names_that_list_prints():
    """`build_ggml.py --list`: labels, llama.cpp's builds, packages, keys of builds."""
    program = [sys.executable, Path(__file__).parents[3] / "build_ggml.py", "--list"]
    done = subprocess.run(program, capture_output=True, text=True, check=True)
    releases, _, builds = done.stdout.partition("* = default pin")
    for line in releases.splitlines():
        label, number, _package, version = line.removeprefix("*").split()
        yield from ((name, label) for name in (label, version, number) if name != "-")
    for line in builds.splitlines()[1:]:
        key = line.split()[0]
        if "-source-" not in key:  # of a checkout: see below
            yield key, key.split("-")[0]


def test_every_name_that_list_prints_is_a_release():
    names = list(names_that_list_prints())
    assert len(names) > 40 and {"0.9.4", "0.9.4.p0.2.4"} <= {label for _name, label in names}
    before = plan(NET)
    for name, label in names:
        after = before.what_if(upstream=name)
        assert after.settings.release == label, name
        assert after.settings.upstream == label.partition(".p")[0]


def test_a_build_of_a_checkout_is_not_a_release():
    for name in ("0.26.0-source-c08ad081", "0.26.0-source-debug-c08ad081", "0.26.0-source"):
        with pytest.raises(ValueError, match=r"a build of a checkout.*ggml-py compare --source"):
            plan(NET).what_if(upstream=name)


def test_the_table_of_releases_is_vendors():
    from ggml_py.trace.rules import RELEASES
    from vendor.releases import releases

    rows = [(r.label, r.ggml, r.version, f"b{r.build}" if r.build else "") for r in releases()]
    assert rows == [tuple(known) for known in RELEASES]


@pytest.mark.thorough("builds")
def test_the_rules_of_another_release_are_those_of_that_release(tmp_path):
    build(RELEASE_0_17)
    program = (
        f"import sys; sys.path.append({TREE!r}); from tests.support import worlds\n"
        f"worlds.attention_with_sinks().to_json({str(tmp_path / 'old.json')!r})\n"
        "print('{}')"
    )
    run(RELEASE_0_17, program)
    old = ggml.Plan.from_json(tmp_path / "old.json")
    assert old.settings.upstream == "0.17.0"
    new = attention_with_sinks()
    same(new.what_if(upstream="0.17.0"), old)
    same(old.what_if(upstream=new.settings.upstream), new)


def test_pipeline_parallelism_of_many_inputs_by_old_rules():
    with ggml.Context() as c, ggml.device("CPU").init() as cpu, ggml.Scheduler([cpu]) as scheduler:
        total = c.new_tensor("f32", 8, name="x0")
        total.set_input()
        for i in range(1, 31):
            x = c.new_tensor("f32", 8, name=f"x{i}")
            x.set_input()
            total = c.add(total, x)
        graph = c.new_graph()
        graph.build_forward_expand(total)
        many = scheduler.plan(graph)
    assert many.what_if(parallel=True, upstream="0.21.0").n_splits == 1
    assert many.what_if(upstream="0.18.0").n_splits == 1
    with pytest.raises(CannotPlanError, match="more than 30 graph inputs"):
        many.what_if(parallel=True, upstream="0.18.0")


# --- changes that make no sense


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"pins": {"n22": "CPU"}}, KeyError, r"pins: no tensor matches 'n22'; near it: .*n2\b"),
        ({"pins": {"n2": "GPU1"}}, KeyError, "pins: no backend 'GPU1' in this plan; it has gpu0, "),
        ({"pins": {"n2": 0}}, TypeError, "pins: 0 is not a backend name; the plan has gpu0, CPU"),
        ({"pins": {99: "CPU"}}, KeyError, "pins: no tensor 99; ids are 0 to 1"),
        ({"pins": {"w*": "gpu0"}}, ValueError, "'w.' matches 3 tensors, none of them a computed"),
        ({"pins": {"w0": "CPU"}}, ValueError, "'w0' is in gpu0 memory, which CPU cannot read: use"),
        ({"pins": {"n2": None}}, ValueError, "'n2' is not pinned; pinned tensors: n4$"),
        ({"pins": "n2"}, TypeError, "pins='n2': expected a dict, such as pins={"),
        ({"pins": {None: "CPU"}}, TypeError, "None is not a tensor: expected a name, a pattern"),
        ({"supports": {"gpu0": True}}, TypeError, r"expected \(backend, op or node\), such as su"),
        ({"supports": {("gpu0", "REUL"): True}}, KeyError, "no node or op matches 'REUL'; .*RELU"),
        ({"supports": {("gpu0", "RELU"): 1}}, TypeError, "is 1: expected True or False"),
        ({"offload": {("gpu0", "RELU"): 0}}, TypeError, "expected True, False or the smallest num"),
        ({"move_weights": {"inp": "gpu0"}}, ValueError, "'inp' has no memory before planning"),
        ({"move_weights": {"blk.*": "gpu0"}}, KeyError, "no tensor matches 'blk.*'; .*, w0"),
        ({"move_weights": {"w0": "gpu9"}}, KeyError, "gpu0, CPU, and buffer types gpu0"),
        ({"drop": ["CPU"]}, ValueError, "drop: CPU is the last backend, which a scheduler needs"),
        ({"drop": ["BLAS"]}, KeyError, "drop: no backend 'BLAS' in this plan; it has gpu0, CPU"),
        ({"drop": ["gpu0"]}, CannotPlanError, "without gpu0 no backend can read gpu0 memory"),
        ({"supports": {("CPU", "*"): False, ("gpu0", "*"): False}}, CannotPlanError, "no backend"),
        ({"op_offload": 1}, TypeError, "op_offload=1: expected True or False"),
        ({"upstream": 0.17}, TypeError, 'upstream=0.17: expected a ggml version, as in upstream="'),
        ({"upstream": "b10000"}, ValueError, "upstream='b10000' is not a known release"),
        ({"upstream": "0.27"}, ValueError, r"0\.26\.0 \(b11549\), 0\.25\.3, 0\.24\.0"),
        ({"upstream": "2026.1.1"}, ValueError, "upstream='2026.1.1' is not a known release"),
        ({"upstream": ""}, ValueError, "upstream='' is not a known release"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_says_why(change, error, message):
    with pytest.raises(error, match=message):
        PINNED.what_if(**change)


PINNED = plan(replace(NET, pins={"n4": "CPU"}))


def test_a_pasted_debug_log_cannot_be_replanned():
    log = replace(PINNED, capture=replace(PINNED.capture, source="debug log"))
    with pytest.raises(ValueError, match="does not contain what the backends support"):
        log.what_if(op_offload=False)


def test_it_works_where_the_native_module_is_blocked(tmp_path):
    PINNED.to_json(tmp_path / "p.json")
    program = (
        "import sys; sys.modules['ggml_py._ggml'] = None\n"
        "import ggml_py\n"
        f"plan = ggml_py.Plan.from_json({str(tmp_path / 'p.json')!r})\n"
        "print(plan.what_if(pins={'n4': None}).headline())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.stdout == PINNED.what_if(pins={"n4": None}).headline() + "\n", done.stderr


# --- any change of any graph


def rows():
    small = st.integers(0, 20)
    return st.lists(st.tuples(st.sampled_from(OPS), small, small), min_size=1, max_size=14)


@st.composite
def worlds(draw):
    recipe = tuple(draw(rows()))
    n_gpus = draw(st.integers(0, 3))
    refused = st.frozensets(st.sampled_from(REFUSABLE), max_size=3)
    homes = st.lists(st.integers(-1, n_gpus - 1), min_size=4, max_size=4)
    return World(
        recipe,
        n_tokens=draw(st.sampled_from([1, 40, 64])),
        refused=tuple(draw(refused) for _ in range(n_gpus)),
        batches=tuple(draw(st.sampled_from([0, 1, 32])) for _ in range(n_gpus)),
        blas=draw(st.booleans()),
        homes=tuple(draw(homes)),
        op_offload=draw(st.booleans()),
        parallel=draw(st.booleans()),
    )


REFUSABLE = ("MUL_MAT", "ADD", "UNARY", "RMS_NORM", "MUL", "SCALE", "CONT", "VIEW")


@st.composite
def changes(draw, world, before):
    """(the changed world, the arguments of what_if that say the same)"""
    n_gpus, args = len(world.refused), {}
    maybe = st.sampled_from([True, False, False])
    if n_gpus and draw(maybe):
        k = draw(st.integers(0, n_gpus - 1))
        op = draw(st.sampled_from(sorted({n.op for n in before.nodes})))
        refused = list(world.refused)
        args["supports"] = {(f"gpu{k}", op): op in refused[k]}
        refused[k] = refused[k] ^ {op}
        world = replace(world, refused=tuple(refused))
    if n_gpus and draw(maybe):
        k, batch = draw(st.integers(0, n_gpus - 1)), draw(st.sampled_from([0, 1, 32, 64]))
        batches = list(world.batches)
        batches[k] = batch
        args["offload"] = {(f"gpu{k}", "*"): batch or False}
        world = replace(world, batches=tuple(batches))
    leafs = [x for x in LEAFS if any(t.name == x for t in before.capture.tensors)]
    if leafs and draw(maybe):
        name, home = draw(st.sampled_from(leafs)), draw(st.integers(-1, n_gpus - 1))
        homes = list(world.homes)
        homes[LEAFS.index(name)] = home
        args["move_weights"] = {name: "CPU" if home < 0 else f"gpu{home}"}
        world = replace(world, homes=tuple(homes))
    for name in ("op_offload", "parallel"):
        if draw(maybe):
            args[name] = not getattr(world, name)
            world = replace(world, **{name: args[name]})
    if world.blas and draw(maybe):
        args["drop"] = ["BLAS"]
        world = replace(world, blas=False)
    free = [n.name for n in before.nodes if n.buft is None]
    if free and draw(maybe):
        args["pins"] = {draw(st.sampled_from(free)): draw(st.sampled_from(world.names))}
        world = replace(world, pins=args["pins"])
    return world, args


LEAFS = ("w0", "w1", "w2", "cache")


def outcome(make):
    """The plan; None where ggml aborts, or the reference says that it would."""
    try:
        return make()
    except (CannotPlanError, ggml.GgmlError) as error:
        event(f"no plan: {type(error).__name__}")
        return None


@pytest.mark.thorough("long")
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_ggml_makes_the_plan_that_what_if_says(data):
    world = data.draw(worlds())
    before = outcome(lambda: plan(world))
    assume(before is not None)
    changed, args = data.draw(changes(world, before))
    event(", ".join(sorted(args)) or "nothing")
    expected = outcome(lambda: plan(changed))
    got = outcome(lambda: before.what_if(**args))
    assert (got is None) == (expected is None)
    if got is not None:
        event("other splits" if got.outcome.splits != before.outcome.splits else "same splits")
        same(got, expected)


@pytest.mark.thorough("long")
@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 2**32))
def test_other_schedulers_on_random_devices_plan_as_what_if_says(seed):
    """Without some backends, with pins, offload and parallel the other way."""
    rng = random.Random(seed)
    world = random_graphs.build(rng)
    try:
        graph, backends = world.graphs[0], list(world.scheduler.backends)
        before = outcome(lambda: world.scheduler.plan(graph))
        assume(before is not None)
        kept = [b for b in backends[:-1] if rng.random() < 0.7] + backends[-1:]
        n_copies, op_offload = rng.choice((1, 4)), rng.random() < 0.5
        ids = {t.name: t.id for t in before.capture.tensors if not t.name.startswith(" ")}
        pins = [(t, b) for t, b in world.pins if t.name in ids and b in kept]
        with ggml.Scheduler(
            kept, world.scheduler.graph_size, parallel=n_copies > 1, op_offload=op_offload
        ) as other:
            for tensor, backend in pins:
                other.set_tensor_backend(tensor, backend)
            expected = outcome(lambda: other.plan(graph))
        try:
            got = outcome(
                lambda: before.what_if(
                    drop=[b.name for b in backends if b not in kept],
                    pins={ids[t.name]: b.name for t, b in pins},
                    parallel=n_copies > 1,
                    op_offload=op_offload,
                )
            )
        except ValueError as error:  # ggml lets weights be pinned to whom cannot read them
            assert "cannot read: use move_weights=" in str(error)
            assume(False)
        assert (got is None) == (expected is None)
        if got is not None and expected is not None:
            event(f"{len(backends) - len(kept)} dropped, {len(pins)} pins")
            same(got, expected)
    finally:
        world.close()
