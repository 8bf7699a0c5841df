"""Every verb given every kind of file: what it takes works, and of all else it says what it is."""

import gzip
import io
import itertools
import json
import os
import re
import sys

import click
import pytest

import ggml_py as ggml
from ggml_py import models
from ggml_py.cli import cli, main
from ggml_py.cli.shared.source import FOLDER, USES, Source, SourceType
from ggml_py.files import kinds as _file_kind
from ggml_py.models.synthetic import LlamaSpec, write_llama

ON = ["-d", "CPU", "-t", "1"]
VERBS = {  # FILE: the file in question, PLAN: a plan
    "plan": ["plan", "FILE"],
    "explain": ["explain", "FILE", "norm-0"],
    "why-not": ["why-not", "FILE", "norm-0", "CPU"],
    "diff": ["diff", "FILE", "PLAN"],
    "diff-b": ["diff", "PLAN", "FILE"],
    "view": ["view", "FILE"],
    "view-other": ["view", "PLAN", "FILE"],
    "sweep": ["sweep", "FILE", "--n-tokens", "1"],
    "generate": ["generate", "FILE", "--tokens", "1", "-n", "1", *ON],
    "trace": ["trace", "FILE", "-n", "1", *ON],
    "bench": ["bench", "FILE", "-p", "1", "-n", "0", "-r", "1", *ON],
}
MODEL_VERBS = {"generate", "trace", "bench"}
PLAN_VERBS = set(VERBS) - MODEL_VERBS - {"sweep"}
VIEW = {"view", "view-other"}
# Which verbs take it; what the others say: those of models, and those of plans (and models).
NEITHER = "neither a GGUF model .* nor a plan .* nor a log"
GET = "Get the file again, or convert the model again"
KINDS = {
    "m.gguf": (set(VERBS) - VIEW, None, "m.gguf is a model: `ggml-py plan .*m.gguf -o plan.html`"),
    "plan.json": (PLAN_VERBS, "plan.json is a saved plan, not a GGUF file: `ggml-py view .*plan."
                  "json` shows it, the verbs check, plan, explain, why-not, diff, memory, cost, "
                  "compare, ops and corpus add take it", "saved plan: a sweep makes many plans"),
    "plan.json.gz": (PLAN_VERBS, "plan.json.gz is a saved plan, not a GGUF file: `ggml-py view ",
                     "saved plan: a sweep makes many plans"),
    "plan.txt": (PLAN_VERBS, "plan.txt is a plan snapshot, not a GGUF file: `ggml-py view .* shows",
                 "plan snapshot: a sweep makes many plans"),
    "log.txt": (PLAN_VERBS, "log.txt is a log with a debug print .*, not a GGUF "
                "file: the verbs check, plan, explain, diff and view take it",
                "log with a debug print of a plan: a sweep makes many plans"),
    "run.json": ({"view"}, "run.json is a recorded run, not a .*: `ggml-py view .*run.js",
                 "run.json is a recorded run(, not a .*: `ggml-py view .*run|: it cannot be co)"),
    "plan.html": ((), *["plan.html is an HTML page, not a .*: open it in a browser"] * 2),
    "plan.trace.json": ((), *["is a Chrome trace, not a .*: open it in https://ui.perfetto"] * 2),
    "other.log": ((), *["is a log without a debug print of a plan, not a .*: run the program again "
                        "with GGML_SCHED_DEBUG=2 in its environment"] * 2),
    "empty": ((), *["empty is empty, not a .*: make it again, or get it again"] * 2),
    "folder": ((), *["File '.*folder' is a directory"] * 2),
    "missing.gguf": ((), *["missing.gguf: no such file"] * 2),
    "text.txt": ((), f"invalid magic characters: 'hell', expected 'GGUF'. {GET}", NEITHER),
    "other.json": ((), f"invalid magic characters: .*, expected 'GGUF'. {GET}", "is not a plan: "),
    "short": ((), f"a GGUF header has 24 bytes, this file has only 2. {GET}", NEITHER),
    "seq.bin": ((), *["seq.bin is a saved sequence, not a .*: .*LlamaModel.load_seq reads it"] * 2),
    "m.safetensors": ((), *["is a checkpoint in another format, .*convert_hf_to_gguf.py"] * 2),
    "pointer.gguf": ((), *["is a Git LFS pointer, not a .*: `git lfs pull` gets the file"] * 2),
    "old.bin": ((), *["a model in a format older than GGUF, not a .*: get it as GGUF"] * 2),
    "m.zip": ((), *["m.zip is a ZIP archive, not a .*: unpack it"] * 2),
    "bad.gz": ((), "is a damaged gzip file, not a GGUF file: get it again", "bad.gz is damaged: "),
}  # fmt: skip
SAVED = ("plan.json", "plan.json.gz", "plan.txt", "log.txt")
USAGE = {*itertools.product(["m.gguf"], VIEW), *itertools.product(SAVED, ["sweep"])}
USAGE |= set(itertools.product(["folder"], VERBS))
USAGE |= set(itertools.product(["run.json"], set(VERBS) - MODEL_VERBS))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kinds")
    (folder / "folder").mkdir()
    write_llama(folder / "m.gguf", LlamaSpec(n_layer=1, n_vocab=128, type="f32"))
    with models.load(folder / "m.gguf", n_threads=1) as model:
        plan = model.plan()
        with model.record() as recording:
            model.eval([1, 2])
    with models.load(folder / "m.gguf", n_threads=1, graphs="libllama") as model:
        model.save_seq(folder / "seq.bin")
    for name in ("plan.json", "plan.json.gz", "plan.html", "plan.trace.json"):
        plan.export(folder / name)
    recording.run.export(folder / "run.json")
    contents = {
        "record": b"GGMLPYRECORD1\r\n\n",
        "plan.txt": plan.snapshot().encode(), "log.txt": plan.text().encode(), "empty": b"",
        "other.log": b"build: 11549 with gcc\n0.00.1 I load_tensors: loading model tensors\n",
        "text.txt": b"hello\nworld\n", "other.json": b'{"a": 1}', "short": b"GG",
        "m.safetensors": (2).to_bytes(8, "little") + b"{}", "m.zip": b"PK\3\4" + bytes(60),
        "pointer.gguf": b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n",
        "old.bin": b"tjgg" + bytes(60), "bad.gz": b"\x1f\x8b garbage",
    }  # fmt: skip
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    return folder


CASES = [
    pytest.param(*case, marks=[pytest.mark.thorough("programs")] * (case == ("m.gguf", "bench")))
    for case in itertools.product(KINDS, VERBS)
]


@pytest.mark.parametrize(("kind", "verb"), CASES)
def test_verbs(folder, kind, verb, capsys, monkeypatch):
    takes, of_models, of_plans = KINDS[kind]
    names = {"FILE": folder / kind, "PLAN": folder / "plan.json"}
    monkeypatch.setattr(sys, "argv", ["ggml-py", *(str(names.get(a, a)) for a in VERBS[verb])])
    with pytest.raises(SystemExit) as exit_:
        main()
    said = capsys.readouterr()
    code = exit_.value.code or 0
    if verb in takes:
        # a diff's exit status says whether there is a difference
        assert code == 0 or (code == 1 and verb.startswith("diff")), said.err
        assert said.out
        return
    assert said.out == ""
    assert re.search(of_models if verb in MODEL_VERBS else of_plans, said.err), said.err
    assert code == (2 if (kind, verb) in USAGE else 1)
    if code == 1:
        assert re.fullmatch(r"error: .*\n", said.err)


SOURCES = {
    "m.gguf": _file_kind.MODEL, "plan.json": _file_kind.PLAN, "plan.json.gz": _file_kind.PLAN,
    "plan.txt": _file_kind.SNAPSHOT, "log.txt": _file_kind.LOG, "run.json": _file_kind.RUN,
    "record": _file_kind.RECORD, "folder": FOLDER,
}  # fmt: skip


@pytest.mark.parametrize("use", USES)
def test_what_a_verb_takes_is_one_table(folder, use):
    """Whatever it does not take, it calls by its name."""
    for name, kind in SOURCES.items():
        source = Source(str(folder / name), use)
        if kind in USES[use].kinds:
            assert source.kind is kind
            continue
        with pytest.raises(click.UsageError, match=rf"{name} is {kind.what}(, not a .*)?: "):
            assert source.kind


def test_sorted_keys_and_what_comes_through_a_pipe(folder, tmp_path, monkeypatch):
    for name in ("plan.json", "run.json"):
        data = json.loads((folder / name).read_bytes())
        (tmp_path / name).write_text(json.dumps(data, sort_keys=True))
        assert Source(str(tmp_path / name), "view").kind is SOURCES[name]
    for name in ("m.gguf", "record"):
        content = (folder / name).read_bytes()
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
        with pytest.raises(click.UsageError, match="cannot be read from standard input: give its"):
            assert Source("-", "plan").kind
        (tmp_path / "x.gz").write_bytes(gzip.compress(content))
        with pytest.raises(ValueError, match="compressed with gzip, not a model or a plan: `gunz"):
            assert Source(str(tmp_path / "x.gz"), "plan").kind


def test_from_python(folder):
    """`load` and `Gguf.open` say the same, of folders and of what is no file, too."""
    for name, (_takes, of_models, _of_plans) in KINDS.items():
        if of_models is not None and name != "folder":
            with pytest.raises(ggml.GgufError, match=of_models):
                models.load(folder / name)
    with pytest.raises(ggml.GgufError, match="folder is a folder: give the path of a GGUF file"):
        models.load(folder / "folder")
    with pytest.raises(ggml.GgufError, match=r"is a folder that has m\.gguf, pointer\.gguf: "):
        ggml.Gguf.open(folder)
    with pytest.raises(ggml.GgufError, match="is not a regular file, so it cannot be mapped"):
        ggml.Gguf.open(os.devnull)


# Names of tests may not change with the time of day: workers of pytest-xdist compare them.
RUN_GZ = gzip.compress(b'{"schema":1,"kind":"ggml_py run","summary":{}}', mtime=0)


@pytest.mark.parametrize(
    ("head", "what"),
    [
        (b'\n{ "schema" : 2,\n "kind":\n"ggml_py plan"', "a saved plan"),
        (RUN_GZ, "a recorded run"),
        (gzip.compress(b"", mtime=0)[:5], "empty"),
        (b"\n <HTML><head>", "an HTML page"),
        (b"llama\nllama: ## SPLIT #0: CPU # 1 inputs\n", "a log with a debug print of a plan"),
        (b'{"a": {"kind":"ggml_py plan"}}', None),
        (b"<htmlish>", None),
        (b"GGUF\3\0\0\0", "a model"),
        (gzip.compress(b"GGUF\3\0\0\0", mtime=0), "a model compressed with gzip"),
        (b"GGMLPYRECORD1\r\n\n", "a record"),
        (b"## SPLIT", None),
        (bytes(64), None),
    ],
)  # fmt: skip
def test_how_files_begin(head, what):
    kind = _file_kind.kind_of(head)
    assert (kind and kind.what) == what


@pytest.mark.parametrize(
    "line",
    ["llama_context: n_ctx = 512", "srv    load_model: loading model 'x'", "ggml_cuda_init: found",
     "0.00.012.345 I print_info: arch = llama", "sched_reserve: graph splits = 2"],
)  # fmt: skip
def test_a_log_without_prints_is_known_by_any_line(line):
    kind = _file_kind.kind_of(b"hello\n" + line.encode())
    assert kind is not None and kind.what == "a log without a debug print of a plan"
    assert _file_kind.kind_of(b"main : not a line of ggml") is None
    assert _file_kind.kind_of(line.encode() + b"\n## SPLIT #0: CPU # 0 inputs") is _file_kind.LOG


@pytest.mark.parametrize(("verb", "file"), [("place", "plan.json"), ("cost", "log.txt")])
def test_what_a_verb_does_not_take_is_said_first(folder, verb, file, capsys, monkeypatch):
    """Found wrong: it asked for --machine first."""
    for more in ([], ["--machine", "none.json"]):
        monkeypatch.setattr(sys, "argv", ["ggml-py", verb, str(folder / file), *more])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 2
        assert f"{file} is a " in (error := capsys.readouterr().err) and "--machine" not in error


@pytest.mark.parametrize("kind", [_file_kind.PLAN, _file_kind.RECORD, _file_kind.RUN])
def test_a_kinds_advice_names_all_verbs_that_take_it(kind):
    """Found wrong: it named four of ten."""
    take = {"compare"} if kind in USES["compare"].kinds else set()  # it reads its words itself
    for name, command in commands(cli):
        for parameter in command.params:
            if isinstance(parameter.type, SourceType) and kind in USES[parameter.type._use].kinds:
                take.add(name)
    named = re.search(r"`ggml-py (view) .*?the verbs? (.*?) takes? it", kind.advice)
    assert {named[1], *re.split(", | and ", named[2])} == take


def commands(group, prefix=""):
    """All verbs by name, also in groups."""
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, f"{name} ")
        else:
            yield prefix + name, command
