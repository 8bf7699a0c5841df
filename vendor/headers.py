"""Reads the declarations in the headers of ggml and of our native code."""

from __future__ import annotations

import re
import shlex
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from pycparser import c_ast, c_generator, c_parser

HEADERS = (
    "ggml.h", "ggml-alloc.h", "ggml-backend.h", "ggml-cpu.h", "gguf.h",
    "ggml-opt.h", "ggml-blas.h", "ggml-rpc.h",
)  # fmt: skip
NATIVE = Path(__file__).resolve().parent.parent / "ggml_py" / "native"
NATIVE_HEADERS = (
    "sched_trace.h",
    "sched_fields.h",
    "run_trace.h",
    "record_trace.h",
    "cpu_trace.h",
    "graph_access.h",
    "blank.h",
    "tensor_data.h",
    "pins.h",
    "decode.h",
    "sim_device.h",
    "assume.h",
    "cards/card.h",
    "mapped_files.h",
    "sim_memory.h",
    "rpc_link.h",
)

# libllama's, read after ggml's, whose types they use. Our C functions stand for those of
# llama-ext.h and of upstream's common library, which are C++.
LLAMA_HEADERS = ("llama.h",)
LLAMA_NATIVE_HEADERS = ("llama/llama_plan.h", "llama/llama_ext.h", "llama/llama_common.h")

# Functions that are not bound, and why.
WAIVED = {
    "ggml_abort": "variadic and never returns; raise an exception instead",
    "ggml_format_name": "variadic; ggml_set_name takes the finished text",
    "ggml_threadpool_get_n_threads": "declared in ggml-cpu.h but not defined anywhere",
}

# Pointers that may be NULL, as upstream tests them before use. The guards check all others.
NULLABLE = {
    ("ggml_soft_max_ext", "mask"), ("ggml_soft_max_ext_inplace", "mask"),
    ("ggml_soft_max_add_sinks", "sinks"), ("ggml_flash_attn_ext", "mask"),
    ("ggml_flash_attn_ext_add_sinks", "sinks"), ("ggml_rope_ext", "c"),
    ("ggml_rope_ext_inplace", "c"), ("ggml_rope_ext_back", "c"), ("ggml_rope_multi", "c"),
    ("ggml_rope_multi_inplace", "c"), ("ggml_rope_multi_back", "c"),
    ("ggml_dsv4_hc_post", "comb"), ("ggml_graph_dump_dot", "cgraph"),
    ("ggml_graph_dump_dot", "gf"), ("ggml_backend_compare_graph_backend", "test_node"),  # 0.9.4
    ("ggml_opt_dataset_get_batch", "labels_batch"), ("ggml_backend_buffer_reset", "buffer"),
    ("ggml_opt_eval", "result"), ("ggml_opt_epoch", "result_train"),
    ("ggml_opt_epoch", "result_eval"),
}  # fmt: skip
# Types that cffi knows but pycparser does not.
_PRELUDE = "".join(
    f"typedef {kind} {name};\n"
    for kind, names in {
        "signed char": "int8_t", "short": "int16_t", "int": "int32_t", "long long": "int64_t",
        "unsigned char": "uint8_t", "unsigned short": "uint16_t", "unsigned": "uint32_t",
        "unsigned long long": "uint64_t size_t uintptr_t", "long": "intptr_t ptrdiff_t",
        "struct _IO_FILE": "FILE",
    }.items()
    for name in names.split()
)  # fmt: skip


@dataclass(frozen=True)
class Param:
    name: str
    type: str  # the C type without const, with spaces normalised


@dataclass(frozen=True)
class Function:
    name: str
    header: str
    result: str
    params: tuple[Param, ...]
    variadic: bool
    prototype: str

    def nullable(self, param: Param) -> bool:
        return (self.name, param.name) in NULLABLE


@dataclass
class Api:
    """The headers' declarations, in order."""

    functions: list[Function] = field(default_factory=list)
    enums: dict[str, dict[str, int]] = field(default_factory=dict)
    version: str = ""  # of ggml
    macros: list[str] = field(default_factory=list)
    types: list[str] = field(default_factory=list)  # C text for the cdef
    constants: list[str] = field(default_factory=list)  # static const declarations

    @property
    def bound(self) -> list[Function]:
        return [f for f in self.functions if f.name not in WAIVED]


@dataclass(frozen=True)
class HeaderSet:
    """The headers that one cffi module declares."""

    upstream: tuple[str, ...]
    native: tuple[str, ...]
    prefixes: str  # of its macros, as a regular expression
    needs: tuple[str, ...] = ()  # declared by another module, whose types these use

    @property
    def own(self) -> tuple[str, ...]:
        return (*self.upstream, *self.native)


GGML = HeaderSet(HEADERS, NATIVE_HEADERS, "GGML|GGUF|GP")
LLAMA = HeaderSet(LLAMA_HEADERS, LLAMA_NATIVE_HEADERS, "LLAMA|GPL", GGML.own)


def _preprocess(folders: tuple[Path, ...], names: tuple[str, ...], cc: str, *flags: str) -> str:
    headers = "".join(f'#include "{name}"\n' for name in names)
    command = [
        *shlex.split(cc), "-E", "-x", "c", *flags, "-D__attribute__(x)=", "-D__extension__=",
        *(part for folder in folders for part in ("-I", str(folder))), "-",
    ]  # fmt: skip
    done = subprocess.run(command, input=headers, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{shlex.join(command)} failed:\n{done.stderr.strip()}")
    return done.stdout


def _ours(preprocessed: str, folders: tuple[Path, ...]) -> str:
    """Keeps the text of upstream's and our headers. System headers go: their typedefs are known."""
    keep, kept = False, []
    for line in preprocessed.splitlines():
        marker = re.match(r'# (\d+) "(.*)"', line)
        if marker:
            keep = marker[2].startswith(tuple(map(str, folders)))
            if keep:
                kept.append(f'#line {marker[1]} "{marker[2]}"')
        elif keep:
            kept.append(line)
    return "\n".join(kept)


def _macros(preprocessed: str, prefixes: str) -> list[str]:
    number = r"(?:0x[0-9a-fA-F]+|\d+)[uU]?"
    found = re.findall(rf"^#define ((?:{prefixes})_\w+) \(?{number}\)?$", preprocessed, re.M)
    return sorted(set(found))


_C = c_generator.CGenerator()


class _Elide(c_ast.NodeVisitor):  # type: ignore[misc]
    """Replaces values that cffi cannot compute by `...`, which the C compiler fills in."""

    def visit_Enumerator(self, node: c_ast.Enumerator) -> None:
        node.value = c_ast.ID("...")

    def visit_ArrayDecl(self, node: c_ast.ArrayDecl) -> None:
        if node.dim is not None and not isinstance(node.dim, c_ast.Constant):
            node.dim = c_ast.ID("...")
        self.generic_visit(node)


def _value(node: c_ast.Node, known: dict[str, int]) -> int:
    if isinstance(node, c_ast.Constant):
        return int(node.value.rstrip("uUlL"), 0)
    if isinstance(node, c_ast.ID):
        return known[node.name]
    if isinstance(node, c_ast.UnaryOp):
        value = _value(node.expr, known)
        return {"-": -value, "~": ~value, "+": value}[node.op]
    if isinstance(node, c_ast.BinaryOp):
        left, right = _value(node.left, known), _value(node.right, known)
        return {"<<": left << right, "|": left | right, "+": left + right, "-": left - right}[
            node.op
        ]
    raise ValueError(f"{node.coord}: bindgen cannot compute this enum value")


def _read_enum(node: c_ast.Enum, known: dict[str, int]) -> dict[str, int]:
    members, value = {}, -1
    for item in node.values.enumerators:
        value = value + 1 if item.value is None else _value(item.value, known)
        members[item.name] = known[item.name] = value
    return members


def _type_text(node: c_ast.Node) -> str:
    if isinstance(node, c_ast.PtrDecl):
        return (_type_text(node.type) + " *").replace("* *", "**")
    if isinstance(node, c_ast.ArrayDecl):
        return f"{_type_text(node.type)} []"
    if isinstance(node, c_ast.FuncDecl):
        return f"{_type_text(node.type)} ()"
    base = node.type  # of a TypeDecl
    if isinstance(base, c_ast.IdentifierType):
        return " ".join(base.names).replace("_Bool", "bool")
    return f"{type(base).__name__.lower()} {base.name}"


def _name_parameter(param: c_ast.Typename, name: str) -> None:
    inner = param.type
    while not isinstance(inner, c_ast.TypeDecl):
        inner = inner.type
    inner.declname = name


def _read_function(decl: c_ast.Decl) -> Function:
    params, variadic = [], False
    for i, p in enumerate(decl.type.args.params if decl.type.args else ()):
        if isinstance(p, c_ast.EllipsisParam):
            variadic = True
        elif not (isinstance(p, c_ast.Typename) and _type_text(p.type) == "void"):
            if not p.name:
                _name_parameter(p, f"arg{i}")
            params.append(Param(p.name or f"arg{i}", _type_text(p.type)))
    decl.storage = []
    text = " ".join(_C.visit(decl).split())
    return Function(
        decl.name, Path(decl.coord.file).name, _type_text(decl.type.type), tuple(params), variadic,
        text.replace("_Bool", "bool"),
    )  # fmt: skip


def _version(ggml_dir: Path) -> str:
    cmake = (ggml_dir / "CMakeLists.txt").read_text()
    names = ("MAJOR", "MINOR", "PATCH")
    parts = [re.search(rf"set\(GGML_VERSION_{name} (\d+)\)", cmake) for name in names]
    return ".".join(m[1] if m else "0" for m in parts)


def read(ggml_dir: Path, cc: str = "cc", which: HeaderSet = GGML) -> Api:
    """Parses the headers under `ggml_dir`/include, or for `LLAMA` also those of llama.cpp, one
    folder up. Raises RuntimeError if `cc -E` fails."""
    ggml_dir = ggml_dir.resolve()
    folders: tuple[Path, ...] = (ggml_dir / "include", NATIVE)
    if which is LLAMA:
        folders = (*folders, ggml_dir.parent / "include")
    names = (*which.needs, *which.own)
    defined = _macros(_preprocess(folders, names, cc, "-dM"), which.prefixes)
    api = Api(version=_version(ggml_dir), macros=defined)
    source = _PRELUDE + _ours(_preprocess(folders, names, cc), folders)
    tree = c_parser.CParser().parse(source)
    known: dict[str, int] = {}
    wanted = {Path(header).name for header in which.own}
    for node in tree.ext:
        if node.coord is None or Path(node.coord.file).name not in wanted:
            if isinstance(node.type, c_ast.Enum) and node.type.values:
                _read_enum(node.type, known)  # values of wanted enums may refer to it
            continue
        if isinstance(node, c_ast.Decl) and isinstance(node.type, c_ast.FuncDecl):
            api.functions.append(_read_function(node))
            continue
        inner = node.type.type if isinstance(node.type, c_ast.TypeDecl) else node.type
        if isinstance(inner, c_ast.Enum) and inner.values:
            api.enums[inner.name or f"anonymous_{len(api.enums)}"] = _read_enum(inner, known)
        if isinstance(node, c_ast.Decl) and "static" in node.storage:
            node.init = None
            api.constants.append(_C.visit(node) + ";")
        else:
            _Elide().visit(node)
            text = _C.visit(node) + ";"
            if text not in api.types:  # C allows a typedef twice, cffi does not
                api.types.append(text)
    return api
