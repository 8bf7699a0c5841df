"""All imports of the package, and the layers that they must respect.

A folder is a layer (a floor). A module may import its own folder and the floors below. This also
applies to imports inside functions and for annotations. It applies to names in strings, too: in a
call of `import_module`, in a table of a module's `__getattr__`, in a function that is put into
another module's table. `figures.py --list walls` prints the imports that break the rule.
"""

from __future__ import annotations

import ast
import functools
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

REPO = Path(__file__).resolve().parents[2]
PACKAGE = REPO / "ggml_py"

# From the ground up. Folders on the same floor must not import each other.
FLOORS = (
    ("errors", "enums", "builds", "files", "log", "typed"),
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
    ("run", "checks", "trace.reference"),
    ("scheduler",),
    ("record", "trace.capture"),
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
LOAD, FUNCTION, ANNOTATION, NAMED = "load", "function", "annotation", "by name"
_FILL = ("update", "setdefault", "append", "extend", "add", "register")
UNKNOWN = "?"  # imported by a name that is in no string of the module


class Edge(NamedTuple):
    """`source` imports `target`: when it is loaded, inside a function, only for annotations, or
    by a name in a string."""

    source: str
    target: str
    kind: str


class Named(NamedTuple):
    """A module of ours that an import gives, or a `name` in this module."""

    module: str
    name: str = ""


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
    files = sources(package)
    found = {edge for file in files.values() for edge in file.edges(files)}
    return sorted(edge for edge in found if edge.source != edge.target)


def sources(package: Path = PACKAGE) -> dict[str, Source]:
    """The package's modules, read, by name."""
    return {name: Source(name, path) for name, path in modules(package).items()}


class Source:
    """A module's syntax tree and imports."""

    def __init__(self, name: str, path: Path) -> None:
        self.name = name
        folder = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
        self.folder = [part for part in folder if part]
        self.tree = ast.parse(path.read_text("utf-8"))
        self.nodes = list(ast.walk(self.tree))
        docs = {id(node.value) for node in self.nodes if isinstance(node, ast.Expr)}
        self.strings = {
            id(node): node.value for node in self.nodes
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
            and id(node) not in docs
        }  # fmt: skip

    def edges(self, files: Mapping[str, Source]) -> Iterator[Edge]:
        """The imports of this module, and imports of other modules whose tables it fills."""
        meant = self.names(files)
        for what, _local, kind in self.statements(files):
            if home := self.loaded(what.module, what.name, files):
                yield Edge(self.name, home, kind)
            if what.module or (what.name and not home):
                yield Edge(self.name, what.module, kind)
        for target in self.by_name(self.nodes, files):
            yield Edge(self.name, target, NAMED)
        for node in self.nodes:
            if isinstance(node, ast.Attribute):
                module = self.module_of(node.value, meant)
                if module is not None and (home := self.loaded(module, node.attr, files)):
                    yield Edge(self.name, home, NAMED)
            elif (table := _filled(node)) in meant:
                for target in self.handed(node, meant, files):
                    yield Edge(meant[table].module, target, NAMED)

    def names(self, known: Collection[str]) -> dict[str, Named]:
        """The imported names of this module, and their meanings."""
        return {local: what for what, local, _kind in self.statements(known)}

    @staticmethod
    def loaded(module: str, name: str, files: Mapping[str, Source]) -> str:
        """The module that another's `__getattr__` loads for a name; "" if it loads none."""
        return files[module].public.get(name, "") if module in files else ""

    def module_of(self, node: ast.expr, meant: Mapping[str, Named]) -> str | None:
        """The module of ours that an expression gives; None for anything else."""
        if isinstance(node, ast.Name) and node.id in meant:
            return None if meant[node.id].name else meant[node.id].module
        if isinstance(node, ast.Call) and _is_import(node):
            head, holes, _tail = _template(node.args[0])
            return None if holes else self._absolute(head)
        return None

    def statements(self, known: Collection[str]) -> Iterator[tuple[Named, str, str]]:
        """The meaning of each imported name, the name here, and the kind of the import."""
        for node, kind in _statements(self.tree, LOAD):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    top, _, module = alias.name.partition(".")
                    if top == "ggml_py":
                        local = alias.asname or ("" if module else top)
                        yield Named(module), local, kind
                continue
            if node.level:
                base = self.folder[: len(self.folder) - node.level + 1]
            elif (node.module or "").partition(".")[0] == "ggml_py":
                base = []
            else:
                continue
            module = (node.module or "").removeprefix("ggml_py").lstrip(".")
            base = base + (module.split(".") if module else [])
            for alias in node.names:
                whole = ".".join([*base, alias.name])
                what = Named(whole) if whole in known else Named(".".join(base), alias.name)
                yield what, alias.asname or alias.name, kind

    @functools.cached_property
    def public(self) -> dict[str, str]:
        """The names that a module's `__getattr__` loads from others: its tables of name: module."""
        found: dict[str, str] = {}
        if "__getattr__" not in (getattr(node, "name", "") for node in self.tree.body):
            return found
        for node in self.tree.body:
            if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Dict):
                for key, value in zip(node.value.keys, node.value.values, strict=True):
                    if isinstance(key, ast.Constant) and isinstance(value, ast.Constant):
                        module = ".".join([*self.folder, str(value.value)])
                        found |= {str(key.value): module} if value.value else {}
        return found

    def by_name(self, nodes: Iterable[ast.AST], known: Collection[str]) -> Iterator[str]:
        """The modules that strings name: "ggml_py.plan" wherever it is written, and any string of
        the module that completes the name in a call of `import_module`. "?" if there is none."""
        for node in nodes:
            if id(node) in self.strings:
                module = self._absolute(node.value) if node.value.startswith("ggml_py.") else None
                if module and module in known:
                    yield module
            elif isinstance(node, ast.Call) and _is_import(node):
                yield from self._completed(node.args[0], known)
            elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "__getattr__":
                name = getattr(node.args[0], "value", None)
                if name in self.public:
                    yield self.public[name]

    def _completed(self, name: ast.expr, known: Collection[str]) -> Iterator[str]:
        head, holes, tail = _template(name)
        words = self.strings.values() if holes else [""]
        meant = [self._absolute(f"{head}{word}{tail}") for word in words]
        found = {module for module in meant if module and module in known}
        yield from found
        whole = not holes and (head == "ggml_py" or not head.startswith((".", "ggml_py.")))
        if not (found or whole or _is_listed(name, self.tree)) or holes > 1:
            yield UNKNOWN

    def _absolute(self, name: str) -> str | None:
        """The module that a name given to `import_module` means; None if it is not ours."""
        if name.startswith("."):
            up = len(name) - len(name.lstrip(".")) - 1
            return ".".join([*self.folder[: len(self.folder) - up], *name.strip(".").split(".")])
        top, _, module = name.partition(".")
        return module if top == "ggml_py" else None

    def handed(
        self, node: ast.AST, meant: Mapping[str, Named], known: Collection[str]
    ) -> Iterator[str]:
        """The modules that a statement hands to another module by filling its table."""
        yield from self.by_name(ast.walk(node), known)
        for inner in ast.walk(node):
            if isinstance(inner, ast.Name) and inner.id in meant and inner.id != _filled(node):
                yield meant[inner.id].module or UNKNOWN


def _is_import(node: ast.Call) -> bool:
    called = getattr(node.func, "attr", getattr(node.func, "id", ""))
    return called in ("import_module", "__import__", "run_module") and bool(node.args)


def _filled(node: ast.AST) -> str:
    """The name of the table that a statement fills; "" if it fills none."""
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript):
        return getattr(node.targets[0].value, "id", "")
    called = node.func if isinstance(node, ast.Call) else None
    if isinstance(called, ast.Attribute) and called.attr in _FILL:
        return getattr(called.value, "id", "")
    return ""


def _template(name: ast.expr) -> tuple[str, int, str]:
    """The text before the parts of a name that are not constant, their number, the text behind."""
    if isinstance(name, ast.Constant):
        return str(name.value), 0, ""
    if isinstance(name, ast.JoinedStr):
        texts = [str(p.value) if isinstance(p, ast.Constant) else None for p in name.values]
        first = texts[0] if texts[0] is not None else ""
        last = texts[-1] if len(texts) > 1 and texts[-1] is not None else ""
        return first, texts.count(None), last
    if isinstance(name, ast.BinOp) and isinstance(name.op, ast.Add):
        (head, left, _), (_, right, tail) = _template(name.left), _template(name.right)
        return head, left + right or 1, tail
    return "", 1, ""


def _is_listed(name: ast.expr, tree: ast.AST) -> bool:
    """Whether a loop gives a name the constants that it lists."""
    return any(
        isinstance(node, ast.For)
        and ast.unparse(node.target) == ast.unparse(name)
        and isinstance(node.iter, ast.Tuple | ast.List)
        and all(isinstance(one, ast.Constant) for one in node.iter.elts)
        for node in ast.walk(tree)
    )


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
    if edge.target == UNKNOWN:
        return "a module that no string of this one names"
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
    knows = (*PLAIN, "variants", "plan", "run", "checks", "trace.reference")
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
