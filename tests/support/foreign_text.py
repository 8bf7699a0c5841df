"""Text that somebody else chose, in every field of every kind of source, and each verb's outputs.

`SOURCES` has the kinds. Each makes its files with `put(field, text)` in the place of every text in
them, so a new field needs no line here. `VERBS` has the outputs of each kind.
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
import socketserver
import struct
import sys
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, get_args, get_origin
from xml.etree import ElementTree

import click
import numpy as np
from markdown_it import MarkdownIt

from ggml_py import Plan, Run, load_profile
from ggml_py.cli import cli, main
from ggml_py.cost import Machine
from ggml_py.export.json import keys, plan_file
from ggml_py.export.json.values import to_json
from ggml_py.models.synthetic import LlamaSpec
from ggml_py.record import stream
from ggml_py.trace.fields import fields_of, optional, plain, record_in
from ggml_py.trace.provenance import FACTS, Provenance
from ggml_py.trace.structs import Rows, StructLayout

from . import drawn_plans, record_mutator
from .measured import knows_all

MARK, SECRET = "owned", "s3cr3t"
# A window's title, concealed text, C1's CSI and DCS, NUL, marks of direction; markup and emoji of
# rich; HTML that leaves scripts, attributes and comments; Markdown; formats; a cell's border.
CORE = (
    "\x1b]0;owned\x07\x1b[8mgone\x9b31m\x90q\x9c\x00\x08\r\x7f\u202e\u2066\u061c\u200f\u2028"
    "[/b][bold red]x[/][link=x]:smile:</script><script>alert(1)</script>\"'><img src=x onerror=y>"
    "<!--<b>]]>&lt;%s %(x)s {x} {0.__class__} \\ a|b `` ```\n```\n~~~\n<i>\n\n# h\n- i [l](http://"
    "evil.example/) ![i](x) http://evil.example www.evil.example @octocat a@evil.example $(id) \t"
)
BEGINNINGS = (
    "=1+1", "+1", "-1", "@SUM(1)", "\t=1", "\r=1", "\n=1", "\uff1d1", "|", "#", "1. ", "> ", "    ",
)  # fmt: skip
# Where there is room for 63 bytes only.
SHORT = (
    "=1+1\x1b]0;owned\x07", "\x9b8m owned\u202e", "[/b][bold]owned", "</script><i>owned",
    "|`owned\n<b>", '"><b>owned', "@owned.example", "[owned](http://e)",
)  # fmt: skip
ADDRESS = f"https://user:{SECRET}@evil.example/m.gguf?token={SECRET}&x=1"

Field = tuple[str, ...]
Put = Callable[[Field, str], str]


def hostile(turn: int) -> Put:
    """Puts hostile texts. Each field has another beginning, and in each turn another one."""
    numbers: dict[Field, int] = {}

    def put(field: Field, was: str) -> str:
        number = numbers.setdefault(field, len(numbers)) + turn
        return f"{BEGINNINGS[number % len(BEGINNINGS)]}{CORE}{was}"

    return put


def long(field: Field, was: str) -> str:
    """Ten thousand characters, in every fourth field."""
    return was if len("".join(field)) % 4 else f"{'x<b>' * 2500}{was}"


def in_a_name(put: Put, most: int = 63) -> Put:
    """A text of `put`, or a short one where there is no room for it."""

    def at(field: Field, was: str) -> str:
        text = put(field, was)
        if text == was or len(text.encode("utf-8", "surrogatepass")) <= most:
            return text
        return f"{SHORT[len(''.join(field) + text[:3]) % len(SHORT)]}{was}"[:most]

    return at


def surrogate(_field: Field, was: str) -> str:
    """Half of a pair, which no encoding has."""
    return f"\ud800{was}"


def with_password(_field: Field, was: str) -> str:
    """An address with a password and a token."""
    return f"{ADDRESS} {was}"


TEXTS: dict[str, Put] = {
    **{f"turn {i}": hostile(i) for i in (0, 4)}, "long": long, "surrogate": surrogate,
    "password": with_password,
}  # fmt: skip


def harmless(put: Put) -> Put:
    """Texts as long as those of `put` that do nothing."""

    def at(field: Field, was: str) -> str:
        text = put(field, was)
        n = len(text.encode("utf-8", "replace"))
        return "q" * (n - len(was.encode())) + was if text.endswith(was) else "q" * n

    return at


def only(field: Field, put: Put) -> Put:
    """`put` in this field only."""
    return lambda at, was: put(at, was) if at == field else was


def without(fields: set[Field], put: Put) -> Put:
    return lambda at, was: was if at in fields else put(at, was)


def replaced(data: Any, put: Put, path: Field = ()) -> Any:
    """JSON data with other texts. Those in the rows of a table are one field."""
    if isinstance(data, dict):
        return {key: replaced(value, put, (*path, key)) for key, value in data.items()}
    if isinstance(data, list):
        return [replaced(value, put, path) for value in data]
    return put(path, data) if isinstance(data, str) else data


# --- the kinds of sources


def sample(hint: Any) -> Any:
    """A value of a type, with a text wherever it may have one."""
    hint = optional(hint) or hint
    if record_in(hint) is plain(hint):
        facts = FACTS if plain(hint) is Provenance else ()
        given = {fact.name: sample(fact.kind) for fact in facts}
        rows = () if facts else fields_of(plain(hint))
        return plain(hint)(**given, **{f.name: sample(f.hint) for f in rows})
    for type_, value in ((str, "x"), (bool, False), (int, 0), (float, 0.0)):
        if plain(hint) is type_:
            return value
    items = get_args(plain(hint))
    if get_origin(plain(hint)) is tuple:
        return tuple(sample(i) for i in items if i is not Ellipsis)
    return sample(items[0])


@cache
def whole_plan() -> str:
    """A plan with a value in each key that a file of this kind may have, as JSON."""
    data = json.loads(json.dumps(drawn_plans.llama(2, refused=("SOFT_MAX",)).to_json()))
    for key in keys.PARTS:
        if not data[key.name] or key.name == "provenance":
            was, data[key.name] = data[key.name], json.loads(json.dumps(to_json(sample(key.type))))
            try:
                Plan.of(plan_file.parse(json.dumps(data).encode(), "p")).headline()
            except ValueError:
                data[key.name] = was
    return json.dumps(data)


def _plan(path: Path, put: Put) -> None:
    data = replaced(json.loads(whole_plan()), put)
    path.with_name("plan.json").write_text(json.dumps(data))
    data["tensors"][5]["backend"] ^= 1
    path.with_name("other.json").write_text(json.dumps(data))


def _plan_there(folder: Path, name: str) -> Plan:
    return Plan.of(plan_file.read(folder / name))


def _log(path: Path, put: Put) -> None:
    """As upstream prints it. Names are cut, so the text comes last, or all would be the same; one
    with a line end would be another plan."""

    def printed(field: Field, was: str) -> str:
        most = _PRINTED.get(field, 0)
        text = put(field, was).replace("\n", "") if most else was
        if text == was:
            return was
        return f"{was[:most]}{text if most > 1 else CONCEALED}"

    _plan(path, printed)
    for name in ("plan", "other"):
        text = _plan_there(path.parent, f"{name}.json").text()
        path.with_name(f"{name}.log").write_text(text, newline="")


# Characters that a name keeps.
_PRINTED = {("tensors", "name"): 12, ("tensors", "op_desc"): 4, ("backends", "name"): 1}
CONCEALED = "\x1b[8m"  # of a backend's name five bytes are printed


def _snapshot(path: Path, put: Put) -> None:
    _plan(path, put)
    for name in ("plan", "other"):
        page = _plan_there(path.parent, f"{name}.json").snapshot()
        path.with_name(f"{name}.plan").write_text(page)


@cache
def _run_data() -> str:
    plan = Plan.of(plan_file.parse(whole_plan().encode(), "p"))
    return json.dumps(drawn_plans.ran(plan).to_json())


def _run(path: Path, put: Put) -> None:
    path.write_text(json.dumps(replaced(json.loads(_run_data()), put)))


def _record(path: Path, put: Put) -> None:
    """JSON of its chunks, and the texts in the rows of its structures."""
    structs: dict[str, StructLayout] = {}
    chunks = []
    for chunk in record_mutator.whole():
        payload = bytes(chunk.payload)
        if chunk.type in ("head", "schd", "note"):
            data = json.loads(payload)
            structs = stream.layouts(data["layouts"]) if chunk.type == "head" else structs
            fixed = {name: data.pop(name) for name in ("layouts", "enums") if name in data}
            data = {**replaced(data, put, (chunk.type,)), **fixed}
            payload = json.dumps(data).encode()
        elif chunk.type == "plan":
            parts = {tag: bytes(part) for tag, part in chunk.sections().items()}
            rows = _texts(parts["rows"], put, "gp_tensor_record", structs)
            payload = record_mutator.sections({**parts, "rows": rows})
        chunks.append((chunk.type, chunk.process, chunk.time, payload))
    path.write_bytes(record_mutator.written(chunks))


def _texts(rows: bytes, put: Put, struct_: str, structs: Mapping[str, StructLayout]) -> bytes:
    layout, out, short = structs[struct_], bytearray(rows), in_a_name(put)
    for member in layout.members:
        if member.is_text:
            size = int(str(member.format)[1:])
            for i, text in enumerate(Rows(layout, rows)[member.name]):
                new = short((struct_, member.name), text.decode("utf-8", "replace"))
                at = i * layout.size + member.offset
                out[at : at + size] = new.encode("utf-8", "replace")[:size].ljust(size, b"\0")
    return bytes(out)


def _machine(path: Path, put: Put) -> None:
    plan = Plan.of(plan_file.parse(whole_plan().encode(), "p"))
    knows_all([plan]).save(path, force=True)
    data = replaced(json.loads(path.read_text()), put)
    path.write_text(json.dumps({**data, "doubts": [put(("doubts",), "x")]}))
    path.with_name("plan.json").write_text(whole_plan())


_ASSIGNED = re.compile(r"(?m)^(\s*(\w+)\s*= )(.*?)$")
OF_ADD = "type=f32,ne=[8,1,1,1],op_params=[],sources=f32[8,1,1,1],f32[8,1,1,1]"
VULKANINFO = Path(__file__).parents[1] / "sim/llvmpipe_vulkaninfo.txt"


def _vulkaninfo(path: Path, put: Put) -> None:
    def line(found: re.Match[str]) -> str:
        is_number = re.match(r"[\d-]|true|false", found[3])  # with a text no device can have it
        text = found[3] if is_number else put((found[2],), found[3])
        return found[1] + text.replace("\n", "")

    path.write_text(_ASSIGNED.sub(line, VULKANINFO.read_text()), newline="")
    _gguf(path.with_name("m.gguf"), lambda _field, was: was)


def _answers(path: Path, put: Put) -> None:
    """What `test-backend-ops support --output csv` prints of a device."""
    names = ("test_time", "build_commit", "backend_name", "op_name", "op_params", "supported",
             "error_message", "test_mode", "device_description")  # fmt: skip
    row = ("1", "x", "X0", "ADD", OF_ADD, "1", "", "support", "x")
    with path.open("w", newline="") as file:
        writer = csv.writer(file, quoting=csv.QUOTE_ALL)
        writer.writerow(put(("a column", name), name) for name in names)
        writer.writerow(put((name,), one) for name, one in zip(names, row, strict=True))
    _gguf(path.with_name("m.gguf"), lambda _field, was: was)


def _gguf(path: Path, put: Put) -> None:
    spec = LlamaSpec(n_layer=1, n_embd=32, n_head=2, n_head_kv=2, n_ff=32, n_vocab=300)
    about = ("type", "name", "basename", "organization", "license", "source.url", "description")
    data = {
        **spec.header(), **{f"general.{name}": "x" for name in about}, "general.tags": ["x"],
        "tokenizer.ggml.pre": "default", "tokenizer.chat_template": "{{ messages[0].content }}",
    }  # fmt: skip
    short = in_a_name(put)
    tokens = data.pop("tokenizer.ggml.tokens")  # those of bytes must stay
    data = replaced(data, put)
    data["tokenizer.ggml.tokens"] = [t if t[0] == "<" else short(("tokens",), t) for t in tokens]
    data[put(("a key",), "general.x")] = 1
    body, at = b"", 0
    tensors = [(short((re.sub(r"\d+", "N", name),), name), ne) for name, ne in spec._shapes()]
    tensors += [(short(("a tensor",), ""), (32,))]
    tensors = tensors if tensors[-1][0] else tensors[:-1]
    for name, ne in tensors:
        body += _text(name) + struct.pack(f"<I{len(ne)}QIQ", len(ne), *ne, 0, at)
        at += 4 * int(np.prod(ne))
    head = b"".join(_text(key) + _value(value) for key, value in data.items())
    content = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(data)) + head + body
    path.write_bytes(content + bytes(-len(content) % 32 + at))


def _text(text: str) -> bytes:
    raw = text.encode("utf-8", "surrogatepass")
    return struct.pack("<Q", len(raw)) + raw


def _value(value: Any) -> bytes:
    for type_, number, format_ in ((bool, 7, "<?"), (int, 4, "<I"), (float, 6, "<f")):
        if isinstance(value, type_):
            return struct.pack("<I", number) + struct.pack(format_, value)
    if isinstance(value, str):
        return struct.pack("<I", 8) + _text(value)
    inner = [_value(item) for item in value]
    kind = struct.pack("<I", 5) if type(value[0]) is int else inner[0][:4]  # with a sign
    rest = b"".join(one[4:] for one in inner)
    return struct.pack("<I", 9) + kind + struct.pack("<Q", len(inner)) + rest


class Source(NamedTuple):
    """A kind of file: its name, what makes it, and a reader that refuses what no verb takes."""

    name: str
    make: Callable[[Path, Put], None]
    read: Callable[[Path], Any]
    verbs: tuple[str, ...] = ()


_OF_PLANS = (
    "plan plan.json", "plan plan.json -v", "plan plan.json --text --passes --order",
    "plan plan.json --json", "plan plan.json --steps", "plan plan.json --cpu --advice",
    "plan plan.json --text --passes --steps --order --cpu --advice --json",
    "plan plan.json --what-if op_offload=off", "plan plan.json --what-if op_offload=off --json",
    "explain plan.json 5", "explain plan.json 5 --json", "explain plan.json nobody",
    "why-not plan.json -- 5 BACKEND", "why-not --json plan.json -- 5 BACKEND",
    "why-not plan.json 5 nobody", "diff plan.json other.json", "diff plan.json other.json --json",
    "view plan.json", "view plan.json --json", "view plan.json other.json",
    "view plan.json other.json -o OUT.html", "view plan.json other.json -o OUT.md",
    "view plan.json other.json plan.json -o OUT.html", "view plan.json other.json plan.json",
    "view plan.json --plan 1",
    "view plan.json -o OUT.html", "view plan.json -o OUT.md", "view plan.json -o OUT.csv",
    "view plan.json -o OUT.dot", "view plan.json -o OUT.txt", "view plan.json -o OUT.json",
    "view plan.json -o OUT.trace.json", "view plan.json -o OUT.explorer.json",
    "view plan.json --op-tests OUT.txt", "check plan.json", "check plan.json --json",
    "check plan.json --markdown", "check plan.json other.json", "memory plan.json",
    "memory plan.json -v", "memory plan.json --at-peak", "memory plan.json --json",
    "memory plan.json --html OUT.html", "cost plan.json", "sweep plan.json", "place plan.json",
    "corpus add OUT plan.json",
)  # fmt: skip
# Their plans are those of the file as JSON, so a few outputs are enough.
_OF_PAGES = (
    "plan FILE", "plan FILE -v", "plan FILE --text --passes --json", "plan FILE --text",
    "plan FILE --json", "explain FILE 5", "diff FILE OTHER", "check FILE --markdown",
    "check FILE OTHER", "view FILE -o OUT.html", "view FILE -o OUT.md", "view FILE -o OUT.csv",
    "memory FILE", "cost FILE", "sweep FILE",
)  # fmt: skip


def _like_plan(suffix: str) -> tuple[str, ...]:
    return tuple(
        line.replace("FILE", f"plan.{suffix}").replace("OTHER", f"other.{suffix}")
        for line in _OF_PAGES
    )




def _of_profile(name: str) -> tuple[str, ...]:
    """DEVICE is another one in each folder: one of that name would stay, and at most 16 can be."""
    given = f"m.gguf -d sim:DEVICE,profile={name} -d CPU -ngl 1"
    verbs = (f"plan {given} -v", f"plan {given} --json", f"plan {given} -o OUT.md")
    return (*verbs, f"why-not {given} 5 DEVICE", f"view {name}")


SOURCES = {
    "plan": Source(
        "plan.json", _plan, lambda path: _read_plan(path), _OF_PLANS,
    ),
    "log": Source(
        "plan.log", _log, lambda path: Plan.from_debug_log(path.read_text()), _like_plan("log"),
    ),
    "snapshot": Source(
        "plan.plan", _snapshot, lambda path: Plan.from_snapshot(path.read_text()),
        _like_plan("plan"),
    ),
    "run": Source(
        "run.json", _run, lambda path: Run.from_json(path).summary(), (
            "view run.json", "view run.json --json", "view run.json -o OUT.html",
            "view run.json -o OUT.trace.json", "view run.json -o OUT.json", "check run.json",
            "check run.json --json", "check run.json --markdown", "plan run.json",
            "view run.json -o OUT.md",
        ),
    ),
    "record": Source(
        "r.ggrec", _record, lambda path: _read_record(path), (
            "view r.ggrec", "view r.ggrec --json", "view r.ggrec --run",
            "view r.ggrec --run --json", "plan r.ggrec", "plan r.ggrec --plan 0 -v",
            "plan r.ggrec --plan 0 --json",
            "view r.ggrec -o OUT.html", "view r.ggrec --plan 0 -o OUT.html",
            "view r.ggrec r.ggrec r.ggrec --plan 0 -o OUT.html",
            "view r.ggrec --plan 0 -o OUT.md",
            "view r.ggrec --plan 0 -o OUT.csv", "explain r.ggrec 0 --plan 0", "check r.ggrec",
            "check r.ggrec --json", "check r.ggrec --markdown", "record --of .",
            "record --of . --json", "view r.ggrec --op-tests OUT.txt", "corpus add OUT r.ggrec",
            "sweep r.ggrec --plan 0 -n 1,2", "memory r.ggrec --plan 0", "diff r.ggrec r.ggrec",
            "view r.ggrec --plan 9", "check r.ggrec --when prompt",
        ),
    ),
    "machine": Source(
        "machine.json", _machine, Machine.load, (
            "cost plan.json --machine machine.json", "cost plan.json --machine machine.json --json",
            "plan plan.json --machine machine.json", "check plan.json --machine machine.json",
            "plan plan.json --machine machine.json --json",
            "check plan.json --machine machine.json --markdown",
            "view plan.json --machine machine.json -o OUT.html",
            "diff plan.json plan.json --machine machine.json", "view machine.json",
            "view plan.json plan.json --machine machine.json -o OUT.html",
        ),
    ),
    "vulkaninfo": Source("vk.txt", _vulkaninfo, load_profile, _of_profile("vk.txt")),
    "answers": Source("a.csv", _answers, load_profile, _of_profile("a.csv")),
    "model": Source(
        "m.gguf", _gguf, lambda path: _read_model(path), (
            "plan m.gguf -v", "plan m.gguf -o OUT.html --json", "plan m.gguf -o OUT.md",
            "explain m.gguf 5", "check m.gguf --markdown", "sweep m.gguf -n 1,2",
            "generate m.gguf -t 1 -n 2 -p w1", "generate m.gguf -t 1 -n 2 --chat -p w1",
            "trace m.gguf -t 1 -n 1 -p 2 --json", "view m.gguf",
        ),
    ),
}  # fmt: skip


def _read_plan(path: Path) -> None:
    _plan_there(path.parent, path.name).headline()


def _read_record(path: Path) -> None:
    from ggml_py import Record

    record = Record.read(path)
    if not record.whole() or record.damaged or record.damage:
        raise ValueError(f"{record.damaged} {record.damage}")


def _read_model(path: Path) -> None:
    from ggml_py import models

    with models.load(path, header_only=True, build=False) as model:
        model.plan(1, 0, 1)
        _ = model.tokenizer


# --- an output


class Said(NamedTuple):
    """What a verb said: its exit status, both streams, and the file that it wrote."""

    code: int
    out: str
    err: str
    file: str | None


def run(words: list[str], folder: Path, environ: Any = MappingProxyType({})) -> Said:
    """Runs a verb in this process, in that folder. OUT.html is the file that it writes."""
    out = next((folder / word for word in words if word.startswith("OUT.")), None)
    if out is not None:
        out.unlink(missing_ok=True)
    streams = [io.TextIOWrapper(io.BytesIO(), encoding="utf-8", newline="") for _ in range(2)]
    before, was, code = Path.cwd(), sys.argv, 0
    os.chdir(folder)
    sys.argv = ["ggml-py", *words]
    environ = {"COLUMNS": "100000", "GGML_PY_NO_BUILD": "1", **environ}
    kept = {name: os.environ.get(name) for name in environ}
    os.environ.update(environ)
    try:
        with redirect_stdout(streams[0]), redirect_stderr(streams[1]):
            main()
    except SystemExit as error:
        code = int(error.code or 0)
    finally:
        os.chdir(before)
        sys.argv = was
        for name, value in kept.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
    texts = []
    for one in streams:
        one.flush()
        texts.append(one.buffer.getvalue().decode())  # type: ignore[attr-defined]
    written = out.read_bytes().decode() if out is not None and out.exists() else None
    return Said(code, *texts, written)


# --- what no output may have

SHOWN = re.compile(f"(:{SECRET}@|={SECRET})")

CONTROLS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


def faults(words: list[str], said: Said, benign: Said) -> Iterator[str]:
    """What is wrong with an output of hostile texts. `benign` is that of the same texts without
    them."""
    for name, text in (("stdout", said.out), ("stderr", said.err)):
        if found := CONTROLS.search(text):
            yield f"{name} has {found[0]!r}: {text[max(0, found.start() - 60) :][:120]!r}"
        if "Traceback" in text or "MarkupError" in text or SHOWN.search(text):
            yield f"{name}: {text[-400:]!r}"
    if said.code not in (0, 1, 2):
        yield f"exit status {said.code}"
    if said.code != benign.code:
        yield f"exit status {said.code}, and {benign.code} without: {said.err[-300:]!r}"
        return
    if "--json" in words and said.out:
        yield from _json_faults(said.out)
    if "--markdown" in words and said.out:
        yield from _shape_faults("Markdown", markdown_shape, said.out, benign.out)
    if (said.file is None) != (benign.file is None):
        yield f"wrote {said.file and said.file[:80]!r}, and {benign.file and benign.file[:80]!r}"
    if said.file is None or benign.file is None:
        return
    suffix = next(w for w in words if w.startswith("OUT.")).rpartition(".")[2]
    if suffix == "json":
        yield from _json_faults(said.file)
    if suffix in SHAPES:
        yield from _shape_faults(suffix, SHAPES[suffix], said.file, benign.file)
    if suffix in ("md", "dot", "txt", "html") and (found := CONTROLS.search(said.file)):
        yield f"the {suffix} has {found[0]!r}: {said.file[max(0, found.start() - 60) :][:120]!r}"


def _json_faults(text: str) -> Iterator[str]:
    try:
        data = json.loads(text)
    except ValueError as error:
        yield f"JSON: {error}"
        return
    for one in _strings(data):
        plain = one.replace("'\"'\"'", "'")  # of a shell's word
        begun = plain[plain.find(CORE[:10]) :]
        whole = begun.startswith(CORE) or CORE.startswith(begun) or plain.endswith("…")
        if CORE[:10] in plain and not whole and not any(short in plain for short in SHORT):
            yield f"JSON: not exactly the text: {one[:200]!r}"


def _strings(data: Any) -> Iterator[str]:
    if isinstance(data, str):
        yield data
    elif isinstance(data, dict | list):
        for value in data.values() if isinstance(data, dict) else data:
            yield from _strings(value)


def _shape_faults(
    what: str, shape: Callable[[str], list[str]], text: str, benign: str
) -> Iterator[str]:
    found, expected = shape(text), shape(benign)
    for i, one in enumerate(found):
        if i >= len(expected) or expected[i] != one:
            yield f"{what}: {one!r} in place of {expected[i : i + 1]} at {i} of {len(expected)}"
            return
    if len(found) < len(expected):
        yield f"{what}: {expected[len(found)]!r} is missing"


class _Html(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=False)
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.found.append(f"<{tag} {' '.join(name for name, _value in attrs)}>")
        self.found += [f"{n}={v}" for n, v in attrs if n in ("href", "src", "style", "class", "id")]

    def handle_endtag(self, tag: str) -> None:
        self.found.append(f"</{tag}>")

    def handle_comment(self, _data: str) -> None:
        self.found.append("a comment")

    def handle_data(self, data: str) -> None:
        if self.cdata_elem and re.search("<!--|<script|</", data) and MARK in data:
            self.found.append("a script with what ends it")

    def unknown_decl(self, data: str) -> None:
        self.found.append(f"<!{data}")


def html_shape(text: str) -> list[str]:
    """Tags and the names of attributes."""
    parser = _Html()
    parser.feed(text)
    parser.close()
    return parser.found


_MARKDOWN = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
_LINK = re.compile(r"https?://\w|www\.\w|@\w")


def markdown_shape(text: str) -> list[str]:
    """Its structure without text: blocks, HTML, and words that GitHub turns into links."""
    found = []
    for block in _MARKDOWN.parse(text):
        found.append(block.content if block.type == "html_block" else block.type)
        inner = [one for one in block.children or () if one.type not in ("text", "softbreak")]
        found += [one.content if one.type == "html_inline" else one.type for one in inner]
        for one in block.children or ():
            if one.type == "text":
                found += _LINK.findall(one.content)
    return found


FORMULAS = tuple("=+-@\t\r\n\uff1d\uff0b\uff0d\uff20")


def csv_shape(text: str) -> list[str]:
    """Numbers of cells, and cells that a spreadsheet computes."""
    found = []
    for row in csv.reader(io.StringIO(text, newline="")):
        found.append(f"{len(row)} cells")
        found += [c for c in row if c.startswith(FORMULAS) and MARK in c]
    return found


def dot_shape(text: str) -> list[str]:
    """All but what is in quotation marks."""
    return re.sub(r'"(?:[^"\\]|\\.)*"', '""', text).splitlines()


def xml_shape(text: str) -> list[str]:
    return [f"{e.tag} {sorted(e.attrib)}" for e in ElementTree.fromstring(text).iter()]


SHAPES = {
    "html": html_shape, "md": markdown_shape, "csv": csv_shape, "dot": dot_shape, "xml": xml_shape,
}  # fmt: skip


# --- all of it

# Of a text in a name there is only one kind; logs and snapshots are made from plans, which refuse
# halves of pairs.
CASES = [
    (name, text) for text in TEXTS for name in SOURCES
    if (name, text) not in (("log", "surrogate"), ("snapshot", "surrogate"))
    and (name not in ("model", "vulkaninfo", "answers") or text == "turn 0")
]  # fmt: skip


def refused(source: Source, put: Put, folder: Path) -> tuple[list[Field], list[Field]]:
    """All fields of a source that can have the text, and those in which its reader refuses it."""
    fields: list[Field] = []
    path = folder / source.name
    source.make(path, lambda field, was: fields.append(field) or was)  # type: ignore[func-returns-value]
    fields = list(dict.fromkeys(fields))
    source.read(path)
    left = []
    for field in list(fields):
        try:
            source.make(path, only(field, put))
        except (ValueError, KeyError):  # of our own: it is made from a plan that has no such text
            fields.remove(field)
            left.append(field)
            continue
        try:
            source.read(path)
        except (ValueError, KeyError):
            left.append(field)
    return fields, left


def outputs(
    source: Source, put: Put, left: set[Field], folder: Path
) -> Iterator[tuple[list[str], Said, Said]]:
    """The words of each verb, what it says of hostile texts, and what of others."""
    sides = []
    used = without(left, put)
    for name, here in (("hostile", used), ("benign", harmless(used))):
        at = folder / name
        at.mkdir()
        source.make(at / source.name, here)
        sides.append(at)
    for line in source.verbs[:: 4 if put is long else 1]:  # it takes seconds
        yield line.split(), *(run(_given(line, at), at) for at in sides)


def _given(line: str, folder: Path) -> list[str]:
    words = line.replace("DEVICE", f"x{zlib.crc32(os.fsencode(folder)):08x}").split()
    if "BACKEND" in words:
        backend = _plan_there(folder, "plan.json").backends[0].name
        words[words.index("BACKEND")] = backend
    return words


# --- words of the command line

WORD = (CORE + ADDRESS).replace("\0", "")  # no program can be given a NUL
PREFIXES = {  # of an option's value
    "-d": ("", "rpc:", f"rpc:me:{SECRET}@127.0.0.1:1 ", "sim:", "sim:x,profile=",
           "sim:x,profile=rtx4090,", "sim:x,profile=rtx4090,set."),
    "--what-if": ("", "pin:", "move:x=", "drop=", "profile:"), "-ot": ("", "x="),
}  # fmt: skip


def command_lines() -> Iterator[tuple[str, list[str]]]:
    """Each argument and each option of each verb that takes a text, with a hostile one."""
    for name, verb in _verbs(cli, ()):
        arguments = [p for p in verb.params if isinstance(p, click.Argument)]
        needed = [_usual(p) for p in arguments if p.required or p.name == "what"]
        for i, argument in enumerate(arguments):
            words = [*needed[:i], WORD, *needed[i + 1 :]]
            yield f"{' '.join(name)} {argument.name}", [*name, *words]
        for option in verb.params:
            if isinstance(option, click.Option) and not option.is_flag and option.opts[0] != "-m":
                for begin in PREFIXES.get(option.opts[0], ("",)):
                    words = [*name, *needed, option.opts[0], f"{begin}{WORD}"]
                    yield f"{' '.join(name)} {option.opts[0]} {begin}".strip(), words


def _verbs(verb: Any, name: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    for inner, command in verb.commands.items():
        if isinstance(command, click.Group):
            yield from _verbs(command, (*name, inner))
        else:
            yield (*name, inner), command


def _usual(argument: click.Argument) -> str:
    is_folder = isinstance(argument.type, click.Path) and not argument.type.file_okay
    return "." if is_folder else "plan.json"


# --- servers

ANSWERS = {
    "reason": "HTTP/1.1 500 {}\r\n\r\n",
    "range": "HTTP/1.1 206 P\r\nContent-Range: {}\r\n\r\n",
    "coding": "HTTP/1.1 206 P\r\nContent-Encoding: {}\r\n\r\n",
    "length": "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n",
    "place": "HTTP/1.1 302 F\r\nLocation: {}\r\n\r\n",
    "place of another kind": "HTTP/1.1 302 F\r\nLocation: ftp://me:s3cr3t@{}\r\n\r\n",
    "place with a secret": "HTTP/1.1 302 F\r\nLocation: http://127.0.0.1:1/x?token=s3cr3t{}\r\n\r\n",
    "no HTTP": "{}\r\n\r\n",
    "a header": "HTTP/1.1 206 P\r\n{}: {}\r\n\r\n",
    "a model": "HTTP/1.1 206 P\r\nContent-Range: bytes 0-3/4\r\nContent-Length: 4\r\n\r\n{:.4}",
}


@contextmanager
def answering(answer: str) -> Iterator[str]:
    """A server that gives this answer to everything. Gives its address, with a password."""
    text = answer.replace("{}", re.sub("[\r\n]", " ", CORE)).replace("{:.4}", CORE[:4])

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(1 << 16)
            self.request.sendall(text.encode("utf-8", "replace"))

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://me:{SECRET}@127.0.0.1:{server.server_address[1]}/m.gguf?token={SECRET}&x=1"
        server.shutdown()
        thread.join()
