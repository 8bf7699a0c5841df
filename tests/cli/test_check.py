"""`ggml-py check`: the first answer, in twenty lines, whatever it is given."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest

import ggml_py as ggml
from ggml_py.cli.shared import this_machine as machine
from ggml_py.cli.shared.this_machine import MachineFact, ThisMachine
from ggml_py.models.synthetic import LlamaSpec, write_llama

from ..support.cli_runs import fails, ok, run
from ..support.debug_logs import DUMP
from ..support.own_records import recorded
from ..support.real_headers import LLAMA_8B, LLAMA_70B, MOE_30B

GPU = ("-d", "sim:gpu0,profile=rtx4090", "-d", "CPU")
BOTH = ("-d", "sim:gpu0,profile=rtx4090", "-d", "sim:gpu1,profile=rtx4090", "-d", "CPU")


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("check")
    few = replace(LLAMA_8B, n_layer=8)
    specs = {"8b": LLAMA_8B, "8l": few, "70b": LLAMA_70B, "moe": MOE_30B}
    written = {name: spec.write(folder / f"{name}.gguf") for name, spec in specs.items()}
    write_llama(folder / "small.gguf", LlamaSpec(n_layer=2, n_vocab=512))
    return {**written, "small": folder / "small.gguf", "folder": folder}


def answer(*arguments, status):
    """The answer as JSON."""
    done = run("check", "--json", *arguments)
    assert done.returncode == status, done.stderr
    return json.loads(done.stdout)


def text_of(*arguments):
    """What is printed, as one line: at most twenty of 80 columns, but for command lines."""
    lines = run("check", *arguments).stdout.splitlines()
    assert len(lines) <= 20
    assert all(len(line) <= 80 for line in lines if not line.startswith(("run:", "more:")))
    return " ".join(" ".join(lines).split())


def test_layers_in_host_memory(models):
    data = answer(models["8l"], *GPU, "-ngl", 5, "-c", 4096, status=1)
    assert data["verdict"].startswith("4 of 8 layers are read from host memory: about ")
    text = text_of(models["8l"], *GPU, "-ngl", 5, "-c", 4096)
    assert text.startswith(data["verdict"]) and "> -ngl all, too" in text
    assert "; -ngl all fits and gives about " in data["verdict"]
    first, second = data["reasons"][:2]
    assert (first["rule"], second["rule"]) == ("GP119", "GP103")
    assert first["remedy"]["checked"] and second["remedy"]["flags"] == "-ngl all"
    assert 0.5 < first["share"] < 1 and first["known_by"] == "data sheets"
    before, after = first["remedy"]["seconds"]
    assert before == pytest.approx(data["graphs"][0]["seconds"])
    assert after < before / 2
    assert data["command"].startswith(f"llama-server -m {models['8l']} -ngl all ")
    rate = data["graphs"][0]["seconds"] and 1 / after
    assert float(data["verdict"].split()[-2]) == pytest.approx(rate, rel=0.02)
    assert data["command"].endswith("--fit off")
    assert [one["device"] for one in data["memory"]] == ["gpu0", "CPU"]
    # The command that it gives is what it promised: it plans as the remedy did.
    flags = data["command"].split()[3:-2]
    again = answer(models["8l"], *GPU, *flags, status=0)
    assert again["graphs"][0]["seconds"] == pytest.approx(after, rel=1e-3)
    assert again["verdict"].startswith("Nothing to change was found: about ")


@pytest.mark.thorough("long")
def test_a_model_that_does_not_fit(models):
    data = answer(models["70b"], *GPU, "-c", 4096, status=1)
    assert data["verdict"].startswith("It does not fit: gpu0 lacks ")
    assert data["graphs"] == data["reasons"] == []  # of a model that does not run
    flags = data["remedy"]["flags"]
    assert f"; {flags} fits" in data["verdict"]
    again = answer(models["70b"], *GPU, "-c", 4096, *flags.split(), status=1)
    assert not again["verdict"].startswith("It does not fit")
    assert all(one["needed"] <= one["free"] for one in again["memory"])


@pytest.mark.thorough("long")
def test_a_file_that_has_no_room_is_read_from_disk(models):
    host = ("-d", "sim:gpu0,profile=rtx4090,memory=8G", "-d", "CPU,memory=4G")
    data = answer(models["moe"], *host, "-ngl", 10, "-c", 512, status=1)
    assert ": at most " in data["verdict"] and "have no room in memory" in data["verdict"]
    text = text_of(models["moe"], *host, "-ngl", 10, "-c", 512)
    assert " GiB more than is free" in text


@pytest.mark.thorough("long")
def test_a_programs_command_line(models):
    words = ("llama-server", "-m", models["moe"], "-ncmoe", "30", "-c", "4096")
    data = answer("-d", "sim:gpu0,profile=rtx3060", "--", *words, status=1)
    assert "30 of 48 layers are read from host memory" in data["verdict"]
    # What --fit chose for each layer is one pattern.
    assert data["command"].count("ffn_(up|down|gate|gate_up)_(ch|)exps=CPU") <= 1


def test_the_next_commands_have_the_options_and_the_path(models, monkeypatch):
    monkeypatch.chdir(models["folder"].parent)
    path = models["8b"].relative_to(models["folder"].parent)
    data = json.loads(run("check", path, *GPU, "-ngl", 20, "-c", 4096, "--json").stdout)
    assert f"-m {path} " in data["command"]
    words = f"{path} {' '.join(GPU)} -ngl 20 -c 4096"
    assert data["more"] == [f"ggml-py plan {words}", f"ggml-py memory {words}"]
    data = json.loads(run("check", *GPU, "--json", "--", "llama-bench", "-m", path).stdout)
    assert data["more"][0] == f"ggml-py plan {' '.join(GPU)} -- llama-bench -m {path}"


@pytest.mark.thorough("long")
def test_files(models):
    plan, other = models["folder"] / "a.json.gz", models["folder"] / "b.json.gz"
    ok("plan", models["8b"], *GPU, "-ngl", 20, "-c", 4096, "-o", plan)
    ok("plan", models["8b"], *GPU, "-ngl", "all", "-c", 4096, "-o", other)
    data = answer(plan, status=1)
    assert "-ngl all may help, and `ggml-py check MODEL` tries changes" in data["verdict"]
    assert data["memory"][0]["free"] == 24 << 30
    data = answer(other, plan, status=1)
    assert data["verdict"].startswith("The second takes ") and "times as long" in data["verdict"]
    assert "flags: -ngl all → -ngl 20" in data["made"]
    assert [one["rule"] for one in data["reasons"]] == ["GP119"]
    data = answer(plan, plan, status=0)
    assert data["verdict"].startswith("The second takes as long as the first by data sheets (")
    assert data["verdict"].endswith("): both make the same decisions.")


@pytest.mark.thorough("long")
def test_flags_that_keep_it_from_fitting_are_undone(models):
    for flags, without in (("-sm none", "-sm layer fits"), ("-ts 1,9", "without -ts fits")):
        data = answer(models["70b"], *BOTH, *flags.split(), "-c", 4096, status=1)
        assert data["verdict"].startswith("It does not fit: ")
        assert f"; {without} and gives about 14 tokens/s" in data["verdict"]


@pytest.mark.thorough("long")
def test_two_of_which_one_does_not_fit(models):
    data = answer(models["8b"], models["70b"], *GPU, status=1)
    assert data["verdict"].startswith("First: Nothing to change was found: ")
    assert " Second: It does not fit: gpu0 lacks " in data["verdict"]


@pytest.mark.thorough("long")
def test_a_device_that_holds_too_much_shares_otherwise(models):
    unequal = ("-d", "sim:gpu0,profile=p40", "-d", "sim:gpu1,profile=rtx4090", "-d", "CPU")
    assert "-ts 4,6 fits" in answer(models["70b"], *unequal, status=1)["verdict"]


def test_a_sequence_has_a_part_of_the_cache(models):
    words = ("llama-server", "-m", models["8l"], "-np", "4", "-c", "8192")
    data = answer(*GPU, "--", *words, status=0)
    assert data["graphs"][0]["graph"] == "a token after 1024"


def test_a_log_has_layers_on_the_cpu(models):
    path = models["folder"] / "partly.log"
    path.write_text(ok("plan", models["8l"], *GPU, "-ngl", 5, "--text"))
    assert answer(path, status=1)["verdict"].startswith("At least 4 of 8 layers are read from host")


def test_a_log(models):
    path = models["folder"] / "server.log"
    path.write_text(f"load_tensors: offloaded 33/33 layers to GPU\n{DUMP}")
    data = answer(path, status=0)
    assert "3 splits, 3 copies" in data["verdict"]
    assert data["verdict"].endswith("what takes time is not known from a log.")
    assert "a log lacks what they need" in text_of(path)


def test_a_record(models):
    path = models["folder"] / "here.ggrec"
    recorded(path, run=True)
    data = answer(path, status=0)
    assert data["graphs"][0]["known_by"] == "measured"
    assert data["graphs"][0]["n_splits"] >= 1
    assert "Nothing to change was found" in data["verdict"]
    assert run("check", path, "--plan", 1).returncode == 0


@pytest.mark.thorough("long")
def test_measured_times_are_called_so(models):
    run_file = models["folder"] / "run.json"
    ok("trace", models["small"], "-n", 4, "-o", run_file)
    data = answer(run_file, status=0)
    (graph,) = data["graphs"]
    assert graph["known_by"] == "measured"
    assert 0 < graph["seconds"] < 10
    per_op = models["folder"] / "per_op.json"
    ok("trace", models["small"], "-n", 4, "--per-op", "-o", per_op)
    data = answer(per_op, status=0)  # computed one by one, which takes longer
    assert data["graphs"][0]["known_by"] != "measured"


def test_markdown_for_an_issue(models):
    out = run("check", models["8b"], *GPU, "-ngl", 20, "--markdown").stdout
    assert out.startswith("**13 of 32 layers are read from host memory")
    assert "| reason | cost | change |" in out and "```sh\nllama-server -m 8b.gguf" in out


def test_mistakes(models):
    assert "exclude each other" in fails("check", "--json", "--markdown", code=2)
    assert "no such file" in fails("check", models["folder"] / "none.gguf")
    assert "is a directory" in fails("check", models["folder"], code=2)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("-ub", 8192), "-ub 8192 is more than -b 512: as in llama.cpp it becomes 512"),
        (("-cmoe",), "the model has no experts"),
        (("-sm", "row"), "-sm row has no effect: no GPU among the devices"),
        (("-ngl", 3), "-ngl 3 has no effect: no GPU among the devices"),
        ((*GPU, *GPU), "rtx4090 is given twice and counts once: give the second another name"),
    ],
    ids=str,
)
def test_what_other_verbs_say_of_options_is_said_once(models, words, said):
    """Found: the options that it tries are not spoken of, and neither were the given ones."""
    done = run("check", models["small"], *words)
    assert done.stderr.count(said) == 1, done.stderr
    assert "GP112" not in done.stdout  # llama.cpp pins again for each graph


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("-ctk", "i32"), "-ctk i32: a cache can have the types f32, f16, "),
        (("--n-tokens", 0), "--n-tokens 0: one graph takes 1 to 512 tokens (-ub)"),
        (("--n-past", 512), "--n-past 512 and --n-tokens 1: expected"),
    ],
    ids=str,
)
def test_what_other_verbs_refuse_is_refused(models, words, said):
    refused = fails("check", models["small"], *words)
    assert said in refused and refused == fails("plan", models["small"], *words)


def test_warnings_about_a_programs_command_line_are_said_once(models):
    line = ("llama-server", "-m", models["small"], "-cmoe", "--fit", "off")
    said = run("check", "--", *line).stderr
    assert said.count("the model has no experts") == 1, said


def test_a_program_without_its_model():
    said = fails("check", "--", "llama-server", code=2)
    assert "llama-server: expected -m MODEL in its command line" in said


def test_what_does_not_fit_names_no_verb_that_fails(models):
    out = run("check", models["70b"], *GPU).stdout
    assert "more: ggml-py memory " in out


def test_a_slower_device_is_named_although_no_rule_found_it(models):
    devices = ("-d", "sim:gpu0,profile=p40", "-d", "sim:gpu1,profile=rtx4090", "-d", "CPU")
    verdict = run("check", models["8b"], *devices, "-c", 8192).stdout.replace("\n", " ")
    assert verdict.startswith("gpu0 takes 7") and "; -sm none -mg 1 fits and gives " in verdict


# --- without an argument


def test_this_machine():
    done = run("check", "--json")
    data = json.loads(done.stdout)
    assert done.returncode == int(data["wrong"])
    facts = {fact["what"]: fact["text"] for fact in data["facts"]}
    assert "with cpu" in facts["build"] and "CPU" in facts["CPU"]
    assert facts["recorder"] and facts["libllama"] and facts["threads"]
    assert facts["order"].startswith("BLAS, CPU: ") and "builds " in facts["cache"]
    shown = run("check").stdout.splitlines()
    assert shown[0].startswith("llama.cpp would put a model on ")
    assert all(len(line) <= 80 for line in shown)


def test_what_is_wrong_with_a_machine(monkeypatch, tmp_path):
    """Files of a system with a GPU, limits of a cgroup, and strict memory."""
    files = {
        "pci/0/class": "0x030000", "pci/0/vendor": "0x10de", "cgroup/cpu.max": "100000 100000",
        "cgroup/memory.max": str(1 << 30), "proc/sys/vm/overcommit_memory": "2",
        "proc/meminfo": "MemTotal: 8388608 kB\nMemAvailable: 4194304 kB\nSwapTotal: 0 kB",
        "pages": "always madvise [never]",
    }  # fmt: skip
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(machine, "_PCI", tmp_path / "pci")
    monkeypatch.setattr(machine, "_PROC", tmp_path / "proc")
    monkeypatch.setattr(machine, "_CGROUP", tmp_path / "cgroup")
    monkeypatch.setattr(machine, "_HUGE_PAGES", tmp_path / "pages")
    monkeypatch.setattr("ggml_py.backends.device.default_n_threads", lambda: 8)
    found = machine.this_machine()
    wrong = {fact.text: fact.mend for fact in found.facts if fact.is_wrong}
    assert found.is_wrong and "more problem" in found.verdict
    mended = " ".join(wrong.values())
    for words in ("-t 1", "--backend cpu,blas,rpc,cuda", "memory=1024M",
                  "sysctl vm.overcommit_memory=0", "echo madvise"):  # fmt: skip
        assert words in mended, words


def test_an_integrated_gpu_is_used_only_alone(monkeypatch):
    """C++: llama_prepare_model_devices"""

    def used(**types):
        kinds = ((name, ggml.enums.BackendDevType[t]) for name, t in types.items())
        named = [SimpleNamespace(name=name, type=kind) for name, kind in kinds]
        monkeypatch.setattr("ggml_py.backends.device.devices", lambda: named)
        return machine._used().removeprefix("llama.cpp would put a model on ")

    assert used(Vulkan0="IGPU", CPU="CPU") == "Vulkan0"
    assert used(Vulkan0="IGPU", CUDA0="GPU", CPU="CPU") == (
        "CUDA0 and not on Vulkan0, which is integrated")
    assert used(CPU="CPU") == "the CPU: there is no GPU"


def test_text_of_others_is_no_markup():
    found = ThisMachine("x", (MachineFact("a|b", "<b>\x1b[1m"),))
    assert "<b>" not in found.markdown() and "a\\|b" in found.markdown()
