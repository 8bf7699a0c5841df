"""The house rules of DESIGN section 2: who imports whom, sizes, names, lazy loading."""

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import ggml_py as ggml

REPO = Path(__file__).parent.parent
PACKAGE = REPO / "ggml_py"
GENERATED = {"ops.py", "enums.py", "_since.py"}

# Layer of each module; a module imports lower ones, in layer 3 only those to its left.
OBJECTS = ("_module", "_device", "registry", "rpc", "buffer", "threadpool", "backend", "loan")
OBJECTS += ("sharing", "arrays", "info", "convert", "dlpack", "data", "op_settings", "tensor")
OBJECTS += ("sim_calls", "sim", "ranges", "ops", "custom", "computing", "context")
OBJECTS += ("graph", "graph_plan", "compare", "alloc", "sched_refusal", "sched_state")
OBJECTS += ("sched_struct", "sched_parts", "sched_view")
OBJECTS += ("sched_callbacks", "recording", "scheduler", "opt_params", "opt_data", "opt", "opt_fit")
OBJECTS += ("gguf", "gguf_writer", "sim_text")
PLAIN = {
    "trace.record", "trace.order", "trace.split", "trace.pause", "trace.passes", "trace.plan",
    "trace.cause", "trace.steps",
    "trace.rules",
    "trace.reference",
    "trace.at_least",
    "trace.match", "trace.releases", "trace.log_lines", "trace.debug_log", "trace.dumped",
    "trace.diff",
    "trace.flops", "trace.shares", "trace.plan_tensor",
    "trace.what_if", "trace.thresholds",
    "trace.finding", "trace.advice", "trace.advice_copies", "trace.advice_ops",
    "trace.advice_layout", "trace.advice_offload", "trace.advice_setup", "trace.advice_reach",
    "trace.reach",
    "trace.words", "trace.decisions", "trace.explain",
    "trace.run", "trace.run_ends", "trace.run_summary",
    "trace.variant", "trace.reasons", "trace.why_not",
    "trace.snapshot", "trace.snapshot_plan", "trace.required",
    "export.to_text", "export.json_schema", "export.to_json", "export.run_json",
    "export.timeline", "export.to_chrome",
    "export.palette", "export.to_csv", "export.to_dot", "export.to_markdown",
    "export.to_model_explorer",
    "export.plan_check", "export.to_terminal",
    "_whole_file", "_read_file",
    "export.files", "export.formats", "export.layers", "export.rows", "export.interning",
    "export.page_data", "export.page_diff", "export.run_times", "export.to_html",
    "export.to_notebook",
}  # fmt: skip
# Plans in, live devices asked: objects and below, plain data, and those to the left.
ASKING = ("trace.replay", "trace.change", "trace.wording", "trace.nearest", "checks")
PROFILE = ["profile_call", "profile_params", "profile_more_ops", "profile_copy_ops"]
PROFILE += ["profile_ops", "profile_rows", "sim_profile"]
FOUNDATION = {"enums": 0, "_since": 0, "_log": 0, "errors": 1, "_release": 2, "_interpreter": 2}
FOUNDATION |= {"_builds": 2, "_ffi": 3, "_handle": 4, "_fork": 2, "_callback": 4}
FOUNDATION |= {"_arguments": 2, "_isolate": 2, "_strict": 3, "_arena": 4}
FOUNDATION |= {"_file_kind": 0, "_gguf_header": 4, "_gguf_split": 2}  # what gguf.py checks first
FOUNDATION |= {"_mapped": 4, "_dead_frames": 0, "_once": 0}


def modules():
    for path in PACKAGE.rglob("*.py"):
        if "native" not in path.parts and "_build" not in path.parts:
            yield path, ".".join(path.relative_to(PACKAGE).with_suffix("").parts)


def imports(path, name):
    """Modules of ours that `path` imports when it is loaded: not those inside functions or
    TYPE_CHECKING blocks."""
    package = name.split(".")[:-1]
    pending = list(ast.parse(path.read_text()).body)
    while pending:
        node = pending.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.If | ast.Try):
            pending += [*node.body, *node.orelse]
        if isinstance(node, ast.ImportFrom) and node.level:
            base = package[: len(package) - node.level + 1]
            if node.module:
                yield ".".join([*base, node.module])
            else:
                yield from (".".join([*base, alias.name]) for alias in node.names)


def allowed(name, target):
    if name == "__init__":
        return False  # loads everything lazily
    if name.startswith("cli") or name in ("__main__", "pytest_plugin"):
        return True
    if target.startswith("cli") or target in ("__main__", "pytest_plugin"):
        return False
    if name in PLAIN or name in ("trace.__init__", "export.__init__"):
        return target in PLAIN
    if name == "trace.capture":
        return target in PLAIN or target in FOUNDATION
    if name in ASKING:
        to_the_left = ASKING[: ASKING.index(name)]
        return target in PLAIN or target in FOUNDATION or target in (*OBJECTS, *to_the_left)
    if name in PROFILE:  # read without the native library
        known = {*PROFILE[: PROFILE.index(name)], "errors", "_builds", "_read_file"}
        return target in known
    if name in FOUNDATION:
        return target in FOUNDATION and FOUNDATION[target] < FOUNDATION[name]
    if name in OBJECTS:
        if target in OBJECTS:
            # ops and tensor know each other; Context is both
            return OBJECTS.index(target) < OBJECTS.index(name)
        return target in {*FOUNDATION, *PLAIN, *PROFILE, "trace.capture"}
    if name.startswith("models"):
        return not target.startswith("trace")
    return False


def test_modules_import_only_what_their_layer_may():
    wrong = [
        f"{name} imports {target}"
        for path, name in modules()
        for target in imports(path, name)
        if not allowed(name, target)
    ]
    assert wrong == []


def test_the_check_would_notice():
    assert not allowed("tensor", "scheduler")
    assert not allowed("trace.plan", "_ffi")
    assert not allowed("models.llama", "trace.capture")
    assert not allowed("context", "cli.plan")
    assert not allowed("trace.replay", "trace.nearest")
    assert not allowed("scheduler", "trace.nearest")


def test_no_hand_written_file_is_over_500_lines():
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=REPO, capture_output=True, text=True, check=False
    ).stdout.split()
    files = [REPO / f for f in tracked] or list(PACKAGE.rglob("*.py"))
    sizes = {
        f.name: len(f.read_text().splitlines())
        for f in files
        if f.suffix in (".py", ".cpp", ".h", ".js", ".css", ".html")
        and f.name not in GENERATED and f.exists()
    }
    assert {name: n for name, n in sizes.items() if n > 500} == {}


def test_folders_are_at_most_two_deep():
    deep = [p for p, _name in modules() if len(p.relative_to(PACKAGE).parts) > 2]
    assert deep == []
    assert not list(REPO.glob("**/utils.py"))


def public_objects():
    for name in ggml.__all__:
        value = getattr(ggml, name)
        if inspect.isclass(value) or inspect.isfunction(value):
            yield name, value
        if inspect.isclass(value) and value.__module__.startswith("ggml_py"):
            for attribute, member in vars(value).items():
                if not attribute.startswith("_") and (
                    inspect.isfunction(member) or isinstance(member, property | classmethod)
                ):
                    yield f"{name}.{attribute}", member


@pytest.mark.parametrize("name", sorted(n for n, _v in public_objects()))
def test_public_names_have_docstrings(name):
    value = dict(public_objects())[name]
    function = value.fget if isinstance(value, property) else value
    doc = inspect.getdoc(function)
    assert doc, name
    if inspect.isfunction(function) and "lib." in inspect.getsource(function):
        assert "C: " in doc, f"{name} calls ggml: its docstring ends with the C function"


def run(program, **kwargs):
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, **kwargs
    )


def test_importing_the_package_loads_nothing_native():
    done = run("import sys, ggml_py; print('ggml_py._ggml' in sys.modules, 'numpy' in sys.modules)")
    assert done.stdout.split() == ["False", "False"], done.stderr


def test_a_tree_that_was_not_built_says_how_to_build_it(tmp_path):
    for path, _name in modules():
        target = tmp_path / "ggml_py" / path.relative_to(PACKAGE)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(path.read_bytes())
    done = run("import ggml_py; ggml_py.devices()", cwd=tmp_path)
    assert done.returncode == 1
    assert "python build_ggml.py" in done.stderr.split("Traceback")[0]  # at import: a warning
    assert "NotBuiltError" in done.stderr.splitlines()[-1]


def test_types_and_style_are_clean():
    for command in (["ruff", "check", "."], ["ruff", "format", "--check", "ggml_py"], ["mypy"]):
        done = subprocess.run(
            [sys.executable, "-m", *command], cwd=REPO, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-3000:]}{done.stderr}"
