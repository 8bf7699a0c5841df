"""Mistakes of new users, at least one for each verb, and their answers.

An answer should repeat the wrong word, name the right ones, and say what to do. Its grade is A with
all three pieces, B with two, C with one, and D if it is a traceback, silence or wrong. A row has
the old grade, and the three pieces now; "" is a missing one.
"""

import json
import os
import sys
from dataclasses import dataclass

import pytest

import ggml_py as ggml
from ggml_py import cli
from ggml_py.models.synthetic import LlamaSpec, write_llama

from ..support.drawn_plans import llama

GRADES = {3: "A", 2: "B", 1: "C", 0: "D"}
LINES = 3


@dataclass(frozen=True)
class Mistake:
    """One row. {d} is the folder with the files of `folder`."""

    words: str
    before: str
    pieces: tuple[str, str, str]  # given, expected, to do
    goes_on: bool = False  # it is a warning

    @property
    def grade(self):
        return GRADES[sum(map(bool, self.pieces))]


def mistake(words, before, given, expected, to_do, **more):
    return Mistake(words, before, (given, expected, to_do), **more)


def usage(verb, words, before, given, expected, to_do=""):
    """One whose answer ends with the usage of its verb."""
    return mistake(words, before, given, expected, to_do or f"see ggml-py {verb} --help")


def plan(words, before, given, expected, to_do=""):
    return usage("plan", f"plan {words}", before, given, expected, to_do)


M, P = "{d}/m.gguf", "{d}/p.json"
MISTAKES = [
    # verbs
    mistake(f"pln {M}", "B", "'pln' is no verb", "expected one of plan, ", "Did you mean plan?"),
    mistake(M, "B", "m.gguf' is no verb", "in front of it", "ggml-py check "),
    mistake(f"llama-server -m {M}", "B", "'llama-server' is no verb", "expected",
            "ggml-py check -- llama-server"),
    mistake("help", "B", "'help' is no verb", "expected one of", "see ggml-py --help"),
    usage("corpus", f"corpus mak {{d}}/c {M}", "B", "'mak'", ""),
    usage("devices", "devices --jsn", "B", "'--jsn'", "--json"),
    usage("releases", "releases all", "B", "(all)", "Usage: ggml-py releases [OPTIONS]"),
    usage("demo", "demo -t two", "B", "'two'", "integer"),
    # files
    plan("", "B", "Missing argument", "'MODEL'", "For example: ggml-py plan model.gguf"),
    mistake("plan {d}/mm.gguf", "C", "mm.gguf: no such file", "a model or a plan", "mean m.gguf"),
    plan("{d}", "B", "is a directory", "expected a file, such as"),
    mistake("plan {d}/empty", "A", "is empty", "a model or a plan", "get it again"),
    mistake("plan {d}/page", "A", "an HTML page", "a model or a plan", "the server sent a page"),
    mistake("plan {d}/junk", "B", r"b'\x00\x01\x02\x03'", "b'GGUF'", ""),
    mistake("plan {d}/notes", "B", "b'my n'", "nor a log with GGML_SCHED_DEBUG=2", ""),
    mistake("plan {d}/tensors", "A", "another format", "a model or a plan", "convert_hf_to_gguf"),
    mistake("generate {d}/cut --tokens 1", "A", "truncated", "ends at byte", "Get it again"),
    mistake("generate {d}/vocab --tokens 1", "A", "only a vocabulary", "the GGUF file of a model",
            "Expected"),
    mistake("check {d}/load.log", "A", "without a debug print", "a model or a plan", "-bench: -v"),
    mistake("plan {d}/newer.json", "A", "schema 99", "reads 2 to", "update ggml_py"),
    mistake("plan {d}/bad.json", "B", "bad.json is not a plan", "not valid JSON", ""),
    mistake("plan http://127.0.0.1:9/m.gguf", "C", "http://127.0.0.1:9/m.gguf cannot be read",
            "Connection refused", "Check the address"),
    mistake(f"plan {M} -o {{d}}/none/p.json", "B", "p.json: cannot be written", "no folder", ""),
    mistake(f"plan {M} -o {P}", "A", "p.json", "already exists", "--force"),
    plan(f"{M} -o {{d}}/out.xyz", "B", "out.xyz is not known", ".html"),
    plan(f"{M} {M}", "B", "unexpected extra argument", "Usage: ggml-py plan [OPTIONS] MODEL"),
    # devices
    mistake(f"plan {M} -d CUDA0", "A", "'CUDA0'", "there are: ", "sim:CUDA0,profile=cuda"),
    mistake(f"plan {M} -d Cpuu", "A", "'Cpuu'", "there are: ", "Did you mean CPU?"),
    plan(f"{M} -d 512", "A", "-d 512", "expected a device", "--n-past"),
    mistake(f"plan {M} -d sim:g,memory=lots", "B", "memory=lots", "512M or 8G", ""),
    mistake(f"plan {M} -d sim:g,profile=rtx4099", "B", "'rtx4099'", "rtx5090", "mean rtx4090"),
    mistake(f"plan {M} -d sim:g,memry=8G", "B", "'memry'", "the settings are", ""),
    mistake(f"plan {M} -d rpc:127.0.0.1:9", "A", "127.0.0.1:9", "nobody answers", "rpc-server"),
    mistake("calibrate -d GPU9 -o {d}/c.json", "A", "'GPU9'", "there are: ", "sim:GPU9"),
    # flags and their values
    plan(f"{M} -nlg 20", "D", "'-nlg'", "Did you mean -ngl?"),
    plan(f"{M} --ctx-sze 4096", "B", "'--ctx-sze'", "--ctx-size?"),
    plan(f"{M} --swa-ful", "B", "'--swa-ful'", "--swa-full?"),
    plan(f"{M} --turbo", "C", "'--turbo'", ""),
    plan(f"{M} -x", "B", "'-x'", ""),
    plan(f"{M} -n 64", "D", "-n 64", "--n-tokens"),
    plan(f"{M} -c", "C", "-c: expected a value", "Tokens that the cache holds"),
    plan(f"{M} -c 8k", "B", "'8k'", "integer. Tokens"),
    mistake(f"plan {M} -c -5", "B", "-c -5", "at least 0", ""),
    plan(f"{M} -ngl many", "B", "'many'", "a number of layers, or all"),
    plan(f"{M} -ngl auto", "B", "'auto'", "a number of layers, or all", "with --fit on"),
    plan(f"{M} -fa maybe", "B", "'maybe'", "'on'"),
    mistake(f"plan {M} -ctk q9_0", "B", "-ctk q9_0", "q8_0", ""),
    plan(f"{M} -t 0", "B", "-t: 0", "x>=1"),
    plan(f"{M} -ts 3;1", "B", "'3;1'", "like 3,1"),
    mistake(f"plan {M} -ot ffn", "A", "-ot ffn", "REGEX=NAME", "like"),
    mistake(f"plan {M} -ot ffn=GPU9", "B", "'GPU9'", "the devices and buffer types are", ""),
    mistake(f"plan {M} -d CPU -ot nope=CPU", "B", "'nope' matches none", "names like", "",
            goes_on=True),
    mistake(f"plan {M} -d CPU -ncmoe 2", "D", "-ncmoe", "no experts", "", goes_on=True),
    mistake(f"plan {M} --n-tokens 100000", "B", "--n-tokens 100000", "1 to 512 tokens (-ub)", ""),
    plan(f"{P} -ngl 20", "B", "-ngl", "can only apply to a model"),
    plan("-- llama-server --port 80", "B", "llama-server", "expected -m MODEL"),
    plan("-- ollama run x", "C", "ollama", "llama-server", "ggml-py record -- ollama"),
    usage("check", f"check {M} --json --markdown", "B", "--json and --markdown", "give one"),
    usage("trace", f"trace {M} -n -1", "B", "-n: -1", "x>=0"),
    usage("calibrate", "calibrate --seconds 900 -o {d}/c.json", "B", "900", "x<=90"),
    usage("calibrate", "calibrate --types q4_9 -o {d}/c.json", "B", "q4_9", "q4_0"),
    # questions about plans
    plan(f"{P} --what-if foo", "B", "'foo'", "expected WHAT=VALUE"),
    mistake(f"plan {P} --what-if pin:nope=CPU", "B", "'nope'", "near it", ""),
    mistake(f"plan {P} --what-if pin:0=GPU9", "A", "'GPU9'", "it has", "mean gpu0?"),
    usage("explain", f"explain {P}", "B", "Missing argument", "'NODE'", "ggml-py explain model"),
    mistake(f"explain {P} rope_3-3", "B", "'rope_3-3'", "similar: rope_", ""),
    mistake(f"explain {P} 99999", "B", "node 99999", "nodes 0..", ""),
    mistake(f"why-not {P} rope_2-3 GPU9", "A", "'GPU9'", "it has", "mean gpu0?"),
    usage("diff", f"diff {P}", "B", "Missing argument", "'B'", "For example: ggml-py diff"),
    usage("diff", f"diff {P} {P} --rename a", "B", "--rename a", "OLD=NEW"),
    usage("view", f"view {M}", "B", "m.gguf is a model", "`ggml-py plan"),
    usage("view", f"view {P} -o {{d}}/x.bin --format htlm", "B", "'htlm'", "(html)"),
    usage("sweep", f"sweep {M} --n-tokens 1-512", "B", "'1-512'", "like 1,512"),
    usage("sweep", f"sweep {P}", "B", "is a saved plan", "it needs the model"),
    # times
    usage("cost", f"cost {M}", "B", "cost needs", "--machine FILE", "`ggml-py calibrate -o FILE`"),
    mistake(f"cost {M} --machine {{d}}/none", "A", "none: there is no", "calibrate", "-o"),
    mistake(f"cost {M} --machine {M}", "A", "not a machine's file", "expected one", "calibrate"),
    usage("place", f"place {M} --machine {P} --workload prompt=x", "B", "prompt=x", "a number"),
    # running
    usage("generate", f"generate {M}", "B", "expected a prompt", "-p TEXT"),
    usage("generate", f"generate {M} --tokens a,b", "B", "'a,b'", "like 1,2,3"),
    usage("generate", f"generate {M} --tokens 1 --temp hot", "B", "'hot'", "float"),
    mistake(f"generate {M} --tokens 1 --top-p 2", "B", "--top-p 2", "0 to 1", ""),
    mistake(f"generate {M} --tokens 99999", "B", "99999", "0 to 511", ""),
    usage("bench", "bench", "B", "Missing argument 'MODEL'", "or with -m"),
    mistake("bench {d}/none.gguf", "C", "none.gguf: no such file", "a GGUF file", ""),
    # programs and releases
    usage("record", "record", "B", "give the program", "record -- PROGRAM"),
    mistake("record -- no-such-program", "C", "no-such-program", "on the PATH, or its path", ""),
    usage("record", "record --max-size lots -- true", "B", "'lots'", "like 500M"),
    mistake("record -- true", "A", "true has no ggml", "linked with no library", "--library"),
    usage("compare", "compare", "B", "0 releases", "name two with --upstream"),
    usage("bisect", "bisect --good 0.9.4", "B", "Missing option", "'--bad'", "For example"),
    usage("ci", "ci {d}/none", "B", "none' does not exist", ""),
    mistake("ci {d}/nothing", "B", "keeps no plans", "*.json.gz", ""),
    usage("corpus add", "corpus add {d}/c", "B", "Missing argument", "'RECORD"),
    usage("diverge", f"diverge {M}", "B", "expected --between A B", "--between CPU BLAS,CPU"),
]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("mistakes")
    write_llama(path / "m.gguf", LlamaSpec(n_layer=2, n_vocab=512))
    data = llama(4).to_json()
    (path / "p.json").write_text(json.dumps(data))
    (path / "newer.json").write_text(json.dumps({**data, "schema": 99}))
    (path / "bad.json").write_text('{"kind": "ggml_py plan", "x"')
    whole = (path / "m.gguf").read_bytes()
    contents = {
        "empty": b"", "page": b"<!doctype html><html></html>", "junk": bytes(range(256)),
        "notes": b"my notes\n", "tensors": b'\x08\0\0\0\0\0\0\0{"a": 1}',
        "cut": whole[: len(whole) // 2],
        "load.log": b"load_tensors: offloaded 20/33 layers to GPU\n",
    }  # fmt: skip
    for name, content in contents.items():
        (path / name).write_bytes(content)
    ggml.write_gguf(path / "vocab", {"general.architecture": "llama",
                                     "tokenizer.ggml.model": "gpt2"}, [])  # fmt: skip
    (path / "nothing").mkdir()
    return path


@pytest.fixture
def run(folder, monkeypatch, capsys):
    """Runs a command line in this process; its exit status and standard error."""

    def run_it(words):
        argv = [word.replace("{d}", str(folder)) for word in words.split()]
        monkeypatch.setattr(sys, "argv", ["ggml-py", *argv])
        cli._WARNINGS._said.clear()
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return ended.value.code or 0, capsys.readouterr().err

    monkeypatch.setitem(os.environ, "GGML_PY_NO_BUILD", "1")
    return run_it


@pytest.mark.parametrize("row", MISTAKES, ids=[row.words.replace("{d}/", "") for row in MISTAKES])
def test_an_answer_has_its_pieces(run, row):
    code, said = run(row.words)
    assert code == 0 if row.goes_on else code in (1, 2), said
    for piece in row.pieces:
        assert piece in said
    assert said.count("\n") <= LINES and "Traceback" not in said


def test_the_grades():
    """No D, at most four C, and nothing is worse than it was."""
    grades = [row.grade for row in MISTAKES]
    assert len(grades) >= 60 and set(grades) <= {"A", "B"}
    assert grades.count("A") >= 60
    worse = [row.words for row in MISTAKES if row.grade > row.before]
    assert not worse, worse
    verbs = {row.words.partition(" ")[0] for row in MISTAKES}
    assert verbs >= cli.cli.commands.keys() - {"build", "memory", "ops"}
