"""Lists that all threads share are copied before they are gone through: others add and remove
entries meanwhile, without a lock, and an entry would be passed over."""

import ast
from pathlib import Path

import ggml_py

CHANGE = {
    "add", "append", "clear", "discard", "extend", "insert", "pop", "popitem", "remove",
    "setdefault", "update",
}  # fmt: skip
MADE = {"list", "dict", "set", "deque", "defaultdict"}
ALONE = {"_after_fork_in_child"}  # functions that run while there is one thread
PACKAGE = Path(ggml_py.__file__).parent


def shared_in(tree):
    """Names of a module's lists, dicts and sets that its functions change."""
    held, changed = set(), set()
    for node in tree.body:
        value = getattr(node, "value", None)
        named = getattr(node, "target", None) or next(iter(getattr(node, "targets", ())), None)
        made = getattr(getattr(value, "func", None), "id", None) in MADE
        if isinstance(named, ast.Name) and (made or isinstance(value, ast.List | ast.Dict)):
            held.add(named.id)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr in CHANGE and isinstance(node.func.value, ast.Name):
                changed.add(node.func.value.id)
        elif isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
            changed.add(getattr(node.value, "id", ""))
    return held & changed


def gone_through(tree):
    """Each name that a loop goes through as it is, with the line."""
    functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name in ALONE]
    alone = {id(inner) for function in functions for inner in ast.walk(function)}
    for node in ast.walk(tree):
        if isinstance(node, ast.For | ast.comprehension) and id(node) not in alone:
            over = node.iter
            if isinstance(over, ast.Call) and isinstance(over.func, ast.Attribute):
                over = over.func.value  # .items(), .values()
            if isinstance(over, ast.Name):
                yield over.id, over.lineno


def test_what_threads_share_is_copied_before_it_is_gone_through():
    files = [f for f in sorted(PACKAGE.rglob("*.py")) if "_build" not in f.parts]  # runs alone
    trees = {path: ast.parse(path.read_text("utf-8")) for path in files}
    shared = {path: shared_in(tree) for path, tree in trees.items()}
    assert {"USES"} <= shared[PACKAGE / "boundary" / "uses.py"]
    every = set().union(*shared.values())
    found = []
    for path, tree in trees.items():
        taken = {a.name for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) for a in n.names}
        here = shared[path] | (taken & every)
        found += [f"{path.relative_to(PACKAGE)}:{line} {name}"
                  for name, line in gone_through(tree) if name in here]  # fmt: skip
    assert found == [], "for … in list(…)"


def test_it_finds_one():
    code = "OPEN = []\ndef f(x):\n OPEN.append(x)\n for y in OPEN: print(y)\n"
    tree = ast.parse(code)
    assert shared_in(tree) == {"OPEN"} and list(gone_through(tree)) == [("OPEN", 4)]
    assert list(gone_through(ast.parse(code.replace("in OPEN", "in list(OPEN)")))) == []
