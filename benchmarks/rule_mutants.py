"""Does `ggml-py compare` notice every rule of the scheduler and the graph allocator?

    python benchmarks/rule_mutants.py [--write] [--list] [--only N ...] [--jobs N]

Changes each condition, number and statement of the functions in `FUNCTIONS` of the default release,
one at a time (`c_mutants.py`), and plans the cases that `compare` plans without a source. A change
that no case notices must have its reason in `same_plans.py`. One library holds all changes; a
number chooses one in a process of its own.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import hashlib
import json
import os
import re
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

REPO = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(Path(__file__).resolve().parent), str(REPO)]

import c_mutants  # noqa: E402
from c_mutants import Mutant  # noqa: E402
from same_plans import REASONS, Reason, reasons_of  # noqa: E402

SCHEDULER, ALLOCATOR = "ggml-backend.cpp", "ggml-alloc.c"
FUNCTIONS = {
    SCHEDULER: (
        "ggml_is_view_op", "ggml_backend_sched_backend_from_buffer",
        "ggml_backend_sched_backend_id_from_cur", "ggml_backend_sched_buffer_supported",
        "ggml_backend_sched_set_if_supported", "ggml_backend_sched_split_graph",
        "ggml_backend_sched_alloc_splits", "ggml_backend_sched_is_host_weight",
        "ggml_backend_sched_copy_input", "ggml_backend_sched_compute_splits",
        "ggml_backend_sched_reset", "ggml_backend_sched_reserve", "ggml_backend_sched_alloc_graph",
        "ggml_backend_sched_graph_compute_async", "ggml_backend_sched_synchronize",
    ),
    ALLOCATOR: (
        "aligned_offset", "ggml_op_can_inplace", "ggml_dyn_tallocr_insert_block",
        "ggml_dyn_tallocr_remove_block", "ggml_dyn_tallocr_new_chunk", "ggml_dyn_tallocr_alloc",
        "ggml_dyn_tallocr_free_bytes", "ggml_dyn_tallocr_reset", "ggml_dyn_tallocr_max_size",
        "ggml_vbuffer_chunk_size", "ggml_vbuffer_alloc", "ggml_vbuffer_tensor_alloc",
        "ggml_gallocr_new_n", "ggml_gallocr_hash_get", "ggml_gallocr_is_own",
        "ggml_gallocr_is_allocated", "ggml_gallocr_free_extra_space", "ggml_gallocr_allocate_node",
        "ggml_gallocr_free_node", "get_node_buffer_id", "ggml_gallocr_alloc_graph_impl",
        "ggml_gallocr_reserve_n_impl", "ggml_gallocr_reserve_n", "ggml_gallocr_init_tensor",
        "ggml_gallocr_node_needs_realloc", "ggml_gallocr_needs_realloc", "ggml_gallocr_alloc_graph",
    ),
}  # fmt: skip
PATTERNS = (
    "ggml_py/releases/*_cases.py", "ggml_py/releases/drawing.py",
    "ggml_py/releases/drawn_at_random.py", "ggml_py/scheduler/as_recorded.py",
    "ggml_py/scheduler/observed.py", "benchmarks/c_mutants.py", "benchmarks/same_plans.py",
    "vendor/upstream.toml",
)  # fmt: skip
LIMIT_S = 4  # seconds of the processor for a case


def mutants(folder: Path, upstream: Path) -> dict[str, list[Mutant]]:
    """Changes by file of a folder of instrumented copies. Our own lines are not changed."""
    made: dict[str, list[Mutant]] = {}
    first = 1
    for file, functions in FUNCTIONS.items():
        text = (folder / file).read_text()
        ours = c_mutants.added_lines(text, (upstream / file).read_text())
        made[file] = c_mutants.mutants_of(text, functions, first, ours)
        first += len(made[file])
    return made


def library(target: Path) -> dict[str, list[Mutant]]:
    """Writes a build into `target` whose base library has all changes."""
    import build_ggml
    from vendor import cache
    from vendor.identity import Options, tree_of, upstream_of

    options = Options()
    upstream = upstream_of(options)
    tree = cache.default_folder() / "trees" / tree_of(options, upstream)
    copies, build = tree / build_ggml.INSTRUMENTED, tree / "build"
    found = mutants(copies, upstream.ggml_dir(options) / "src")
    if not target.is_dir():
        shutil.copytree(build_ggml.build(options), target)
    commands = {
        one["file"]: one["command"]
        for one in json.loads((build / "compile_commands.json").read_text())
    }
    listed = subprocess.run(
        ["ninja", "-t", "commands", "bin/libggml-base.so"],
        cwd=build,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    link = next(line for line in reversed(listed) if " -shared " in line and "libggml-base" in line)
    for file, group in found.items():
        source = target / file
        text = (copies / file).read_text()
        source.write_text(c_mutants.switched(text, group, file.endswith(".c")))
        words = shlex.split(commands[str(copies / file)])
        at = words.index("-o") + 1
        old, words[at] = words[at], str(target / f"{file}.o")
        words = [w for w in words if not w.startswith(("-W", "-O"))] + ["-O1", "-w", f"-I{copies}"]
        words[words.index(str(copies / file))] = str(source)
        subprocess.run(words, cwd=build, check=True)
        link = link.replace(f" {old} ", f" {target / file}.o ")
    library_file = target / "libggml-base.so.0"
    library_file.unlink()
    link = re.sub(r"-o bin/libggml-base\S+", f"-o {library_file}", link)
    subprocess.run(link, shell=True, cwd=build, check=True)
    return found


# --- the process that plans


def digests(cases: list) -> list[str]:
    """What each case leads to, in a word."""
    from ggml_py.scheduler.as_recorded import AsRecorded

    found = []
    for case in cases:
        try:
            with AsRecorded(case.plan, 1024, 1) as scheduler:
                for one in case.earlier:
                    scheduler.plan(one)
                plan = scheduler.plan(case.plan)
                seen = scheduler.observe(case.plan, case.reserve, case.in_depth)
                text = repr((plan.outcome, seen))
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
        if os.environ.get("GP_SHOW"):
            found.append(text)
        else:
            found.append(hashlib.sha256(text.encode()).hexdigest()[:12])
    return found


def forked(
    number: int,
    cases: list,
    variable: ctypes.c_int,
    order: Sequence[int],
    usual: Sequence[str] = (),
) -> dict:
    """The digests of the cases in that order, or the case that notices the change, and how: "" if
    no case does."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.close(read)
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)
        variable.value = number
        with os.fdopen(write, "w") as out:
            for i in order:
                _soft, hard = resource.getrlimit(resource.RLIMIT_CPU)
                resource.setrlimit(resource.RLIMIT_CPU, (int(time.process_time()) + LIMIT_S, hard))
                signal.alarm(60 * LIMIT_S)
                (done,) = digests([cases[i]])
                out.write(done + "\x1e")
                out.flush()
                if usual and done != usual[i] and not os.environ.get("GP_SHOW"):
                    break
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as said:
        found = said.read().split("\x1e")[:-1]
    _pid, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    if code > 0:
        raise RuntimeError(f"change {number}: this program failed, exit status {code}")
    if not usual or os.environ.get("GP_SHOW"):
        return {"rows": found}
    if code and len(found) < len(cases):  # it ended in the next one
        return {"by": cases[order[len(found)]].name, "how": f"ends the process ({code})"}
    if found and found[-1] != usual[order[len(found) - 1]]:
        return {"by": cases[order[len(found) - 1]].name, "how": "differs"}
    return {"by": "", "how": ""}


def child(folder: str, numbers: list[int]) -> None:
    """Runs in a process of its own: a line of JSON for each change."""
    import ggml_py.builds

    ggml_py.builds.LIB_DIR = Path(folder)
    from ggml_py.releases import rule_cases
    from ggml_py.scheduler.as_recorded import AsRecorded

    cases = sorted(rule_cases(), key=lambda case: len(case.plan.capture.tensors))
    with AsRecorded(cases[0].plan) as scheduler:  # so that modules are there
        scheduler.plan(cases[0].plan)
    gc.collect()
    gc.freeze()
    (library_file,) = Path(folder).glob("*/libggml-base.so.0")
    variable = ctypes.c_int.in_dll(ctypes.CDLL(str(library_file)), "gp_mutant")
    order = list(range(len(cases)))
    usual = forked(0, cases, variable, order)["rows"]
    print(json.dumps([0, {"rows": usual}]), flush=True)
    places = {case.name: i for i, case in enumerate(cases)}
    for number in numbers:
        row = forked(number, cases, variable, order, usual)
        print(json.dumps([number, row]), flush=True)
        if row.get("by"):  # it will notice the next change, too
            order.remove(places[row["by"]])
            order.insert(0, places[row["by"]])


def asked(folder: Path, every: dict[int, Mutant], numbers: list[int], jobs: int) -> dict[int, dict]:
    """The row of each change; row 0 is of the unchanged library. Appends to `rows.jsonl`."""

    def part(own: list[int]) -> list:
        job = folder / f"numbers-{own[-1] if own else 0}"
        job.write_text(json.dumps(own))
        rows = []
        with subprocess.Popen(
            [sys.executable, __file__, "--child", str(folder), str(job)],
            stdout=subprocess.PIPE, text=True,
        ) as process:  # fmt: skip
            for line in process.stdout or ():
                number, row = json.loads(line)
                row["of"] = str(every[number]) if number else ""
                rows.append((number, row))
                with (folder / "rows.jsonl").open("a") as out:
                    out.write(json.dumps([number, row]) + "\n")
        return rows

    parts = [numbers[i::jobs] for i in range(jobs if numbers else 1)]
    with ThreadPoolExecutor(jobs) as pool:
        return dict(row for rows in pool.map(part, parts) for row in rows)


def kept(path: Path, every: dict[int, Mutant], usual: list[str]) -> dict[int, dict]:
    """Rows of an earlier run of the same cases and changes."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    if any(row["rows"] != usual for number, row in rows if not number):
        raise SystemExit(f"{path} is of other cases: run it again")
    return {n: row for n, row in rows if n and row["of"] == str(every.get(n, ""))}


def main() -> int:
    """Exit status 0 if each change is noticed, or is known not to be."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", type=int, nargs="*", help="numbers of changes")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--folder", type=Path, help="where the build is made (a temporary folder)")
    parser.add_argument("--kept", type=Path, help="rows.jsonl of a run of the same cases, to go on")
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        child(args.child[0], json.loads(Path(args.child[1]).read_text()))
        return 0
    start = time.monotonic()
    folder = args.folder or Path(tempfile.mkdtemp())
    found = library(folder / "0.26.0-mutants1")
    every = {m.number: m for group in found.values() for m in group}
    if args.list:
        for mutant in every.values():
            print(mutant.number, mutant.line, mutant)
        return 0
    print(f"{len(every)} changes, compiled in {time.monotonic() - start:.0f} s", flush=True)
    wanted = args.only or list(every)
    usual = asked(folder, every, [], 1)[0]["rows"]
    rows = kept(args.kept, every, usual) if args.kept else {}
    new = asked(folder, every, [n for n in wanted if n not in rows], args.jobs)
    rows |= new
    noticed = {n for n in wanted if rows[n]["by"]}
    missed = [every[n] for n in wanted if n not in noticed]
    reasons = {mutant.number: reasons_of(mutant) for mutant in missed}
    for mutant in missed:
        told = "; ".join(f"{one.kind}: {one.why}" for one in reasons[mutant.number])
        print(mutant.number, f"line {mutant.line}", mutant, "|", told or "NO REASON")
    unknown = [m for m in missed if len(reasons[m.number]) != 1]
    wrong = [] if args.only else misfits([every[n] for n in noticed], reasons)
    for text in wrong:
        print(text)
    print(
        f"{len(wanted)} changes: {len(noticed)} noticed, {len(missed)} not; without one reason: "
        f"{len(unknown)}; {time.monotonic() - start:.0f} s"
    )
    if args.write:
        n_kept = len(rows) - len(new)
        write(every, noticed, missed, reasons, n_kept, time.monotonic() - start)
    return 1 if unknown or wrong else 0


def misfits(noticed: Sequence[Mutant], reasons: dict[int, list[Reason]]) -> list[str]:
    """Sentences about reasons that cover a noticed change, and about unused reasons."""
    found = [
        f"too broad: {one.why}: covers {mutant}" for mutant in noticed for one in reasons_of(mutant)
    ]
    used = {one for row in reasons.values() for one in row}
    return found + [f"covers nothing: {one.why}" for one in REASONS if one not in used]


def write(
    every: dict[int, Mutant],
    noticed: set[int],
    missed: list[Mutant],
    reasons: dict[int, list[Reason]],
    n_kept: int,
    seconds: float,
) -> None:
    """Writes the record."""
    import search

    from ggml_py.releases import rule_cases

    functions: dict[str, list[int]] = {}
    for number, mutant in every.items():
        row = functions.setdefault(mutant.site.function, [0, 0])
        row[0] += 1
        row[1] += number in noticed
    groups: dict[tuple[str, str], list[str]] = {}
    for mutant in missed:
        for one in reasons[mutant.number] or [Reason("unknown", "", "", ())]:
            groups.setdefault((one.kind, one.why), []).append(str(mutant))
    kinds = dict.fromkeys(("same", "undefined", "refused", "unseen", "unknown"), 0)
    for (kind, _why), changes in groups.items():
        kinds[kind] += len(changes)
    search.keep(
        "rule_mutants", "python benchmarks/rule_mutants.py --write", PATTERNS,
        equal=not kinds["unknown"], seconds=round(seconds), n_kept=n_kept,
        n_cases=len(rule_cases()),
        n_changes=len(every), n_noticed=len(noticed), not_noticed_by_kind=kinds,
        functions={name: f"{row[1]} of {row[0]}" for name, row in functions.items()},
        not_noticed=[
            {"kind": kind, "why": why, "changes": changes}
            for (kind, why), changes in groups.items()
        ],
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
