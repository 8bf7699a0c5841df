"""All imports of the package, and the layers that they must respect.

    python tests/house/imports.py       the figures: entries, imports upward, circles

A folder is a layer (a floor). A module may import its own folder and the floors below. This also
applies to imports inside functions and for annotations.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

REPO = Path(__file__).resolve().parents[2]
PACKAGE = REPO / "ggml_py"

# From the ground up. Folders on the same floor must not import each other.
FLOORS = (
    ("errors", "enums", "builds", "files", "log"),
    ("trace",),
    ("memory", "cost"),
    ("advice",),
    ("export",),
    ("boundary",),
    ("sim.profiles",),
    ("backends",),
    ("tensors",),
    ("graphs",),
    ("gguf", "sim", "variants"),
    ("plan",),
    ("run", "checks"),
    ("scheduler",),
    ("record",),
    ("releases",),
    ("llama",),
    ("models", "train"),
    ("conformance", "calibrate"),
    ("place",),
    ("cli", "pytest_plugin", "__main__"),
)
_DATA = ("trace", "memory", "cost", "advice", "export")
PLAIN = (*_DATA, "sim.profiles")  # usable without the native library
ANSWERS = (*_DATA, "plan")  # objects below the scheduler use none
LOAD, FUNCTION, ANNOTATION = "load", "function", "annotation"


# Knowledge that should be in one place.
KNOWN = {
    "know a cause code": re.compile(r"""["'](usr|[1-6]\.[a-z]{2,})\d*["']"""),
    "add up the inputs of splits": re.compile(r"for \w+(, \w+)? in \w+\.inputs\b"),
}


class Edge(NamedTuple):
    """`source` imports `target`: when it is loaded, inside a function, or only for annotations."""

    source: str
    target: str
    kind: str


def modules(package: Path = PACKAGE) -> dict[str, Path]:
    """Dotted names below the package: a folder for its `__init__`, "" for the package's own."""
    found = {}
    for path in package.rglob("*.py"):
        parts = path.relative_to(package).with_suffix("").parts
        if parts[0] not in ("native", "_build"):
            found[".".join(parts).removesuffix("__init__").rstrip(".")] = path
    return found


def edges(package: Path = PACKAGE) -> list[Edge]:
    """Every import between two of our modules, each once."""
    known = modules(package)
    found = (
        Edge(name, target, kind)
        for name, path in known.items()
        for target, kind in _imports(name, path, known)
    )
    return sorted({edge for edge in found if edge.source != edge.target})


def _imports(name: str, path: Path, known: dict[str, Path]) -> Iterator[tuple[str, str]]:
    folder = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    folder = [part for part in folder if part]
    for node, kind in _statements(ast.parse(path.read_text("utf-8")), LOAD):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.startswith("ggml_py."):
                    yield alias.name.partition(".")[2], kind
            continue
        if node.level:
            base = folder[: len(folder) - node.level + 1]
        elif (node.module or "").partition(".")[0] == "ggml_py":
            base = []
        else:
            continue
        module = (node.module or "").removeprefix("ggml_py").lstrip(".")
        base += module.split(".") if module else []
        for alias in node.names:
            whole = ".".join([*base, alias.name])
            yield whole if whole in known else ".".join(base), kind


def _statements(tree: ast.AST, kind: str) -> Iterator[tuple[ast.Import | ast.ImportFrom, str]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node, kind
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield from _statements(node, FUNCTION)
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            yield from _statements(node, ANNOTATION)
        else:
            yield from _statements(node, kind)


# --- the rule


def room_of(name: str) -> tuple[int, str] | None:
    """The number of a module's floor, from the ground up, and its folder on that floor."""
    fits = [
        (len(room), floor, room)
        for floor, rooms in enumerate(FLOORS)
        for room in rooms
        if name == room or name.startswith(room + ".")
    ]
    return max(fits)[1:] if fits else None


def wrong(edge: Edge) -> str:
    """The rule that an import breaks; "" if it is allowed."""
    if not edge.source:
        return ""  # the package itself has the public names, which are loaded on demand
    source, target = room_of(edge.source), room_of(edge.target)
    if source is None or target is None:
        return f"{edge.target if source else edge.source} is on no floor"
    if target[0] > source[0]:
        return "up"
    if target[0] == source[0]:
        return "" if target[1] == source[1] or target[0] in (0, len(FLOORS) - 1) else "sideways"
    if source[1] in PLAIN and target[0] > 0 and target[1] not in PLAIN:
        return "plain data that uses the native library"
    scheduler = next(floor for floor, rooms in enumerate(FLOORS) if "scheduler" in rooms)
    knows = (*PLAIN, "variants", "plan", "run", "checks")
    objects = source[0] < scheduler and source[1] not in knows
    if objects and target[1] in ANSWERS:
        return "an object that uses plans"
    if source[1] == "models" and target[1] in ANSWERS and edge.target != "plan":
        return "a model that uses more of plans than Plan"
    return ""


# --- figures


def circles(found: Iterable[Edge]) -> list[set[str]]:
    """Groups of modules that import each other, counting all kinds of imports; largest first."""
    targets = defaultdict(set)
    for edge in found:
        if edge.source:
            targets[edge.source].add(edge.target)
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    groups: list[set[str]] = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for target in targets[name]:
            if target not in index:
                visit(target)
            if target in stack:
                low[name] = min(low[name], low[target])
        if low[name] == index[name]:
            group = set(stack[stack.index(name) :])
            del stack[stack.index(name) :]
            if len(group) > 1:
                groups.append(group)

    for name in list(targets):
        if name not in index:
            visit(name)
    return sorted(groups, key=len, reverse=True)


def figures(package: Path = PACKAGE) -> Iterator[str]:
    """A summary of the imports, in lines."""
    found = edges(package)
    entries = Counter(
        path.relative_to(package).parent.as_posix()
        for path in package.rglob("*")
        if path.is_file() and path.suffix in (".py", ".pyi", ".js", ".css", ".html", ".typed")
        and path.relative_to(package).parts[0] not in ("native", "_build")
    )  # fmt: skip
    folders = Counter(Path(f).parent.as_posix() for f in entries if f != ".")
    yield "entries: " + ", ".join(
        f"{folder} {n + folders[folder]}" for folder, n in sorted(entries.items())
    )
    yield f"imports: {len(found)} between {len(modules(package))} modules"
    up = Counter(edge.kind for edge in found if wrong(edge))
    yield "imports against the rule: " + (
        ", ".join(f"{n} {kind}" for kind, n in sorted(up.items())) or "none"
    )
    texts = {name: path.read_text("utf-8") for name, path in modules(package).items()}
    for what, pattern in KNOWN.items():
        those = sorted(name for name, text in texts.items() if pattern.search(text))
        yield f"modules that {what}: {len(those)} ({', '.join(those)})"
    groups = circles(found)
    yield "circles: " + ("; ".join(f"{len(g)} ({', '.join(sorted(g))})" for g in groups) or "none")


if __name__ == "__main__":
    sys.stdout.write("\n".join(figures()) + "\n")
    for edge in edges():
        if why := wrong(edge):
            sys.stdout.write(f"  {edge.source} -> {edge.target} ({edge.kind}): {why}\n")
