"""The command line as a user runs it: in a process of its own, by its installed name."""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

import ggml_py as ggml
from ggml_py import cli as cli_package
from ggml_py import log as _log
from ggml_py.cli import GROUPS, cli
from ggml_py.cli.devices import command as devices_command
from ggml_py.cli.shared.model_options import device_names
from ggml_py.models.synthetic import LlamaSpec, write_llama

from ..support import cli_runs
from ..support.cli_runs import fails, ok, run
from ..support.foreign_text import run as in_process

pytestmark = pytest.mark.thorough("long", quick=14)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("cli") / "m.gguf"
    write_llama(path, LlamaSpec(n_layer=2, n_vocab=512))
    return path


def test_help_lists_the_verbs_by_group():
    text = ok("--help")
    groups = [name for name in GROUPS if f"\n{name}:\n" in text]
    assert groups == list(GROUPS)
    listed = re.findall(r"^  ([\w-]+) ", text.split("Start here:")[1], re.M)
    assert listed[:3] == ["check", "plan", "record"]
    assert sorted(listed) == sorted(cli.commands)
    files = Path(cli_package.__file__).parent.glob("*.py")
    assert {name.replace("-", "_") for name in listed} == {f.stem for f in files} - {"__init__"}


@pytest.mark.parametrize("verb", cli.commands)
def test_every_verb_has_help(verb):
    assert "sage" in ok(verb, "--help")


def test_devices():
    assert "BLAS" in ok("devices")
    data = json.loads(ok("devices", "--json"))
    assert {d["name"] for d in data["devices"]} == {d.name for d in ggml.devices()}
    assert data["ggml_version"] == ggml.enums.UPSTREAM


@pytest.mark.thorough("long")
def test_a_pipe_gets_whole_names_and_lines(model, monkeypatch):
    """Nobody looks at a pipe that is 80 columns wide: `ggml-py plan m.gguf -v | grep -c OP`."""
    monkeypatch.delenv("COLUMNS", raising=False)
    out = ok("plan", model, "-v")
    plan = ggml.models.load(model, devices=("BLAS", "CPU")).plan()
    computed = [node for node in plan.nodes if node.is_computed]
    assert sum("FLASH_ATTN_EXT" in line for line in out.splitlines()) == 2
    assert all(f" {node.name} " in out for node in computed)
    assert "…" not in out.split("computed nodes")[1]
    _headline, *narrow = ok("plan", model, "-v", env={"COLUMNS": "70"}).splitlines()
    assert max(map(len, narrow)) <= 70  # who says so gets it


@pytest.mark.parametrize(
    "arguments",
    [("plan", "MODEL", "-v"), ("plan", "MODEL", "--text"), ("plan", "MODEL", "--json"),
     ("plan", "MODEL", "--passes"), ("plan", "--help"), ("devices",)],
    ids=" ".join,
)  # fmt: skip
def test_whoever_reads_our_output_may_stop(model, arguments):
    """`ggml-py plan m.gguf -v | head -1`: nothing failed."""
    command = [*cli_runs.COMMAND, *(str(model) if a == "MODEL" else a for a in arguments)]
    reader, writer = os.pipe()
    os.close(reader)  # before a line is written
    done = subprocess.run(
        command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False, timeout=300
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")


def test_devices_says_why_a_backend_has_none(monkeypatch):
    class Registry:
        devices = ()

        def __init__(self, name):
            self.name = name

    names = [Registry(name) for name in ("CUDA", "Vulkan", "RPC")]
    monkeypatch.setattr("ggml_py.backends.registry.registries", lambda: names)
    _log.receive(4, "ggml_cuda_init: failed to initialize CUDA: no driver\n")
    out = CliRunner().invoke(devices_command).output
    assert "CUDA: no device here (ggml_cuda_init: failed to initialize CUDA: no driver)\n" in out
    assert "Vulkan: no device here: no hardware was found, or no driver for it\n" in out
    assert "RPC: its devices belong to servers: name one as rpc:HOST:PORT\n" in out


@pytest.mark.thorough("long")
def test_demo():
    text = ok("demo")
    assert re.search(r"\d+ splits?, 0 copies", text)
    assert re.search(r"Why is ffn_out-3 .*\n  1\.wgt0: it follows its weight", text)
    tokens = re.search(r"16 tokens: ([\d,]+)", text)[1].split(",")
    assert len(tokens) == 16
    data = json.loads(ok("demo", "--json"))
    assert [str(t) for t in data["tokens"]] == tokens  # seeded: the same every time
    assert data["model"]["bytes"] < 30e6
    assert data["tokens_per_s"] > 0
    assert set(data["nodes_per_backend"]) == {"BLAS", "CPU"}


def test_plan_prints_headline_and_splits(model):
    text = ok("plan", model, "--n-tokens", 64)
    verdict, line, head, blas, cpu = text.splitlines()[:5]
    assert verdict.startswith("Nothing to change was found: about ")
    assert re.fullmatch(r"\d+ splits?, 0 copies \(0 B\)", line) and "nodes" in head
    assert re.match(r"BLAS +\d+ \(\d+%\)", blas) and re.match(r"CPU +\d+ \(\d+%\)", cpu)
    assert "FLASH_ATTN_EXT" not in ok("plan", model, "--n-tokens", 64, "-fa", "off", "-v")
    assert "why" in ok("plan", model, "--n-tokens", 64, "-v")


def test_plan_as_text_and_json_agree(model, tmp_path):
    text = ok("plan", model, "--n-tokens", 64, "-d", "BLAS", "-d", "CPU", "--text")
    path = tmp_path / "p.json"
    path.write_text(ok("plan", model, "--n-tokens", 64, "-d", "BLAS", "-d", "CPU", "--json"))
    plan = ggml.Plan.from_json(path)
    assert plan.text() == text
    assert text.startswith("## SPLIT #0: CPU # 0 inputs\nnode #  0 (  GET_ROWS):")
    assert [b.name for b in plan.backends] == ["BLAS", "CPU"]


def test_plan_takes_llama_cpps_options(model):
    text = ok(
        "plan", model, "-d", "CPU", "-ngl", 0, "-c", 256, "-b", 128, "-ub", 64, "-t", 1,
        "-fa", "on", "-ctk", "q8_0", "-ctv", "q8_0", "--text",
    )  # fmt: skip
    assert "FLASH_ATTN" in text and "BLAS" not in text


@pytest.mark.parametrize(
    ("given", "names"),
    [
        (("none",), ("CPU",)),
        (("BLAS,CPU",), ("BLAS", "CPU")),
        (("BLAS,CPU,memory=2G",), ("BLAS", "CPU,memory=2G")),
        (("sim:a,memory=1G,host,cpu,memory=2G",), ("sim:a,memory=1G,host", "cpu,memory=2G")),
        (("BLAS", "CPU"), ("BLAS", "CPU")),
        (("sim:a,memory=1G,host,sim:b,async=0",), ("sim:a,memory=1G,host", "sim:b,async=0")),
        (("CUDA0,sim:a,host", "CPU"), ("CUDA0", "sim:a,host", "CPU")),
    ],
)
def test_devices_with_commas_between(given, names):
    assert device_names(given) == names


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["plan", "/none.gguf"], r"error: .*none\.gguf: no such file"),
        (["plan", cli_runs.__file__], r"error: .*neither a GGUF model \(.* nor a plan"),
        (["generate", cli_runs.__file__, "--tokens", "1"], r"error: .*magic"),
        (["plan", "MODEL", "-d", "GPU9"], r"no device named 'GPU9'; there are: .*CPU\. A device"),
        (["plan", "MODEL", "-d", "Bals"], r"there are: .*CPU\. Did you mean BLAS\? A device"),
        (["plan", "MODEL", "-ctk", "f99"], r"f99.*q8_0"),
        (["generate", "MODEL", "--tokens", "99999"], r"99999"),
        (["generate", "MODEL", "--tokens", "1", "-n", "100000"], r"100000|context"),
        (["build", "--upstream", "0.0.1"], r"0\.0\.1"),
    ],
)
def test_errors_are_one_line_and_exit_1(arguments, message, model):
    error = fails(*(str(model) if a == "MODEL" else a for a in arguments))
    assert re.search(message, error), error
    assert error.startswith("error: ") and len(error.splitlines()) == 1, error


@pytest.mark.parametrize(
    "arguments",
    [["nonsense"], ["plan"], ["generate", "m", "--tokens", "1,x"], ["plan", "m", "-t", "0"],
     ["plan", "m", "-fa", "maybe"]],
)  # fmt: skip
def test_wrong_usage_exits_2(arguments):
    assert "Usage" in fails(*arguments, code=2)


def test_debug_shows_the_traceback():
    assert "Traceback" in run("--debug", "plan", "/none.gguf").stderr


def test_a_fault_of_our_own_is_called_one(monkeypatch, tmp_path):
    def faulty():
        raise IndexError("list index out of range")

    monkeypatch.setattr("ggml_py.cli.check.this_machine", faulty)
    said = in_process(["check"], tmp_path)
    assert said.code == 1 and said.err.count("\n") == 2
    assert said.err.startswith("error: a fault of ggml_py, IndexError: list index out of range\n")
    with pytest.raises(IndexError):
        in_process(["--debug", "check"], tmp_path)


def test_another_release_that_is_not_there_says_how_to_build_it():
    done = run("devices", env={"GGML_PY_UPSTREAM": "0.0.1"})
    assert done.returncode == 1
    assert "GGML_PY_UPSTREAM=0.0.1: no such build here" in done.stderr
    assert "Traceback" not in done.stderr


def test_build_list_is_passed_through():
    assert "0.26.0" in ok("build", "--list")


# --- llama.cpp's spelling


@pytest.mark.parametrize(
    "arguments",
    [("plan", "-m", "MODEL"), ("plan", "-nr", "--model=MODEL"), ("explain", "3", "-m", "MODEL"),
     ("sweep", "--n-tokens", "1", "--model", "MODEL"), ("why-not", "3", "CPU", "-m", "MODEL")],
    ids=" ".join,
)  # fmt: skip
def test_the_model_may_be_an_option(model, arguments):
    given = [a.replace("MODEL", str(model)) for a in arguments]
    flag = next(i for i, a in enumerate(given) if a == "-m" or a.startswith("--model"))
    path = [str(model)] if "=" in given[flag] else given[flag + 1 : flag + 2]
    rest = given[:flag] + given[flag + 1 + ("=" not in given[flag]) :]
    assert ok(*given, "-d", "CPU") == ok(rest[0], *path, *rest[1:], "-d", "CPU")


def test_a_model_twice_is_wrong_usage(model):
    assert "unexpected extra argument" in fails("plan", model, "-m", model, code=2)


def test_all_layers_go_to_the_gpus_unless_told(model):
    gpu = ("-d", "sim:gpu0,profile=cuda", "-nr")
    assert ok("plan", model, *gpu) == ok("plan", model, *gpu, "-ngl", "all")
    assert ok("plan", model, *gpu) != ok("plan", model, *gpu, "-ngl", 0)


def test_a_depth_is_no_device(model):
    said = fails("plan", model, "-d", 512, code=2)
    assert re.search(r"-d 512: expected a device.*depth is -d in ggml-py bench", said, re.S)


def test_a_device_that_is_not_here_may_be_simulated(model):
    error = fails("plan", model, "-d", "Vulkan1")
    assert "there are: BLAS, CPU" in error and error.endswith("sim:Vulkan1,profile=vulkan\n")
    assert " Vulkan1 " in ok("plan", model, "-d", error.split()[-1])


def test_an_architecture_that_is_not_here_names_the_way_by_its_log(tmp_path):
    weight = ("blk.0.w", b"\0" * 16, "f32", (2, 2))
    ggml.write_gguf(tmp_path / "x.gguf", {"general.architecture": "rwkv9"}, [weight])
    error = fails("plan", tmp_path / "x.gguf")
    assert "names architecture 'rwkv9'; supported: " in error
    assert "GGML_SCHED_DEBUG=2" in error and "`ggml-py plan LOG`" in error


def test_an_override_that_matches_nothing_says_so(model):
    gpu = ("-d", "sim:gpu0,profile=cuda", "-nr")
    done = run("plan", model, *gpu, "-ot", "ffn_upp=CPU,ffn_down=CPU")
    (line,) = done.stderr.splitlines()  # once, however often it is planned for a remedy
    assert line.startswith("-ot: 'ffn_upp' matches none of the model's ")
    assert done.returncode == 0 and "remedy: without -ot: " in done.stdout
