"""place: the quickest flags for a model, over libllama's plans and a machine's samples."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest

from ggml_py import llama
from ggml_py.cost.bench_rows import BenchRow
from ggml_py.models.synthetic import LlamaSpec, write_llama
from ggml_py.place import Flags, Way, Workload, place
from ggml_py.place.evaluate import Evaluator, WorkloadTime, doubt
from ggml_py.place.moves import AXES, Choices
from ggml_py.place.placing_flags import device_words, server_line
from ggml_py.place.search import _simplest
from ggml_py.place.verdict import judge

from ..support.cli_runs import fails, ok
from ..support.measured import knows_all, machine

CARD = "sim:gpu0,profile=rtx4090,memory=8G"
NO_CARD = "sim:other0,memory=8G"
WORK = (Workload(64, 16),)
N_LAYER = 4


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("place") / "m.gguf"
    write_llama(path, LlamaSpec(n_layer=N_LAYER, n_vocab=512))
    return path


@pytest.fixture(scope="module")
def slow_cpu(model):
    """A machine of one thread that knows the work of the model's plans on the CPU."""
    plans = []
    for n_gpu_layers in (0, 2):
        for flash_attn in ("on", "off"):
            with llama.open(
                model, devices=(CARD, "CPU"), n_gpu_layers=n_gpu_layers, n_ctx=256,
                program="server", flash_attn=flash_attn, n_threads=1,
            ) as opened:  # fmt: skip
                plans += [opened.plan(n, past) for n in (1, 16, 64) for past in (0, 100)]
    with llama.open(model, n_ctx=256, program="server", n_threads=1) as opened:
        plans += [opened.plan(n, past) for n in (1, 16, 64) for past in (0, 100)]
    return knows_all(plans, gflops=1.0, gbps=1.0).with_cards({"gpu0": "rtx4090"})


def placed(model, machine, *, devices=(CARD, "CPU"), work=WORK, **options):
    return place(model, [machine], devices, work, reserve=0, **options)


# --- what is chosen


def test_a_card_that_is_faster_gets_the_layers(model, slow_cpu):
    found = placed(model, slow_cpu, given={"n_gpu_layers": 0})
    assert not found.verdict.keep and found.chosen.seconds < found.given.seconds / 5
    assert found.chosen.flags.n_gpu_layers == -1
    assert "times as fast" in found.verdict.text
    assert "on CPU; then" in found.verdict.reason and "on gpu0" in found.verdict.reason
    assert found.ended == ""


def test_what_is_best_is_kept(model, slow_cpu):
    found = placed(model, slow_cpu)
    assert found.verdict.keep and found.chosen is found.given
    assert found.verdict.text.startswith("keep what you have")


def test_the_same_question_has_the_same_answer(model, slow_cpu):
    one, two = (placed(model, slow_cpu, given={"n_gpu_layers": 1}) for _ in range(2))
    assert one.server_line() == two.server_line()
    assert [way.flags for way in one.ways] == [way.flags for way in two.ways]
    assert (one.n_plans, one.n_tried) == (two.n_plans, two.n_tried)


def test_what_does_not_fit_is_never_chosen(model, slow_cpu):
    with llama.open(model, devices=(CARD, "CPU"), n_gpu_layers=-1, n_ctx=80,
                    program="server", n_seq_max=1) as opened:  # fmt: skip
        whole = sum(row.nbytes for row in opened.memory if row.device == "gpu0")
    small = f"sim:gpu0,profile=rtx4090,memory={int(whole * 0.7)}"
    found = placed(model, slow_cpu, devices=(small, "CPU"), given={"n_gpu_layers": -1})
    assert not found.given.usable and "it lacks" in found.given.why_not
    assert not found.verdict.keep and "do not run here" in found.verdict.text
    assert 0 < found.chosen.used["gpu0"] <= whole * 0.7


def test_others_may_use_as_much_of_the_reserve_as_the_flags_given(model, slow_cpu):
    """They are quicker with the same memory: "nothing is quicker" would be wrong."""
    given, huge = {"n_gpu_layers": 0}, 1 << 50
    found = place(model, [slow_cpu], (CARD, "CPU"), WORK, given=given, n_ctx=80, reserve=huge)
    free = found.given.used
    assert found.given.usable and found.n_tried > 1
    assert any(way.flags != found.given.flags for way in found.ways)
    assert all(way.used[d] <= free[d] for way in found.ways for d in free if d in way.used)
    assert all(n > huge // 2 for n in found.given.below_reserve.values())  # not cut off at none


@pytest.mark.parametrize("share", (0.4, 0.95))
def test_no_flags_use_more_of_the_reserve_than_those_given(model, slow_cpu, share):
    """They run: "do not run here" would be wrong, and they are what others are compared with."""
    with llama.open(model, devices=(CARD, "CPU"), n_gpu_layers=-1, n_ctx=80,
                    program="server", n_seq_max=1) as opened:  # fmt: skip
        whole = sum(row.nbytes for row in opened.memory if row.device == "gpu0")
    memory = int(whole * 1.1)
    card = f"sim:gpu0,profile=rtx4090,memory={memory}"
    given = {"n_gpu_layers": -1, "n_threads": 1}
    found = place(model, [slow_cpu], (card, "CPU"), WORK, given=given, n_ctx=80,
                  reserve=int(whole * share))  # fmt: skip
    assert found.given.usable and found.given.seconds < 1e9 and not found.given.lacks
    less = found.given.below_reserve["gpu0"]
    assert less == pytest.approx(whole - (memory - int(whole * share)), abs=2)
    assert f"less free than --reserve asks for, by {less / 2**20:.0f} MiB" in found.verdict.text
    assert "do not run here" not in found.verdict.text
    others = [way for way in found.ways if way.flags != found.given.flags]
    assert others or share > 0.9
    assert all(way.used.get("gpu0", 0) <= found.given.used["gpu0"] for way in others)


def test_the_number_of_plans_is_bounded(model, slow_cpu):
    found = placed(model, slow_cpu, plans=20)
    assert found.n_plans <= 20 + 5  # those of --fit are beside them
    assert "--plans" in found.ended
    assert placed(model, slow_cpu, plans=1).n_tried == 1


def test_time_that_is_over_ends_it(model, slow_cpu):
    found = placed(model, slow_cpu, seconds=1e-9)
    assert "--seconds" in found.ended and found.n_tried <= 1


def test_threads_are_those_of_the_machines_files(model, slow_cpu):
    cpu = slow_cpu.device("CPU")
    twice = [s._replace(seconds=tuple(t / 2 for t in s.seconds)) for s in cpu.samples]
    two = machine(*twice, n_threads=2).with_cards({"gpu0": "rtx4090"})
    found = place(model, [slow_cpu, two], ("CPU",), WORK, reserve=0, given={"n_threads": 1})
    assert found.chosen.flags.n_threads == 2 and not found.verdict.keep
    with pytest.raises(ValueError, match="no machine's file has 3 threads"):
        place(model, [slow_cpu, two], ("CPU",), WORK, given={"n_threads": 3})


def test_a_gain_within_the_error_is_none(model, slow_cpu):
    """A CPU that computes everything in nearly the same time however it is asked."""
    found = placed(model, slow_cpu, devices=("CPU",))
    assert found.verdict.keep
    assert found.runner_up is None or "a gain is certain only from" in found.verdict.text


def way(flags, seconds, errors):
    """A way whose prompt takes so long, and may be wrong by so many seconds for each kind."""
    cost = SimpleNamespace(unknown=(), missing_copies=(), splits=(), copies=())
    row = BenchRow(1, 0, 0, seconds, (seconds, seconds), ((1, 0, cost),), errors)
    return Way(flags, (WorkloadTime(Workload(1, 0), row, None),), (), {})


def test_the_error_of_a_difference_decides():
    now, then = Flags(n_threads=1), Flags(n_threads=1, n_ubatch=64)
    product, copy = ("CPU", "MUL_MAT q4_0"), ("gpu0", "copy")
    given = way(now, 1.0, {product: 0.5})
    # What is wrong with the same work is wrong in both: half of it was done elsewhere.
    sure = judge(given, way(then, 0.7, {product: 0.5}), 0.02)
    assert not sure.keep and sure.chosen.flags == then
    unsure = judge(given, way(then, 0.7, {copy: 0.5}), 0.02)
    assert unsure.keep and unsure.chosen is given and unsure.certain_from > 0.3
    assert "keep what you have: 30.0% less time is predicted" in unsure.text
    assert "--measure would tell from about 5% on" in unsure.text
    assert "--measure" not in judge(given, way(then, 0.7, {copy: 0.5}), 0.02, "no device").text
    # Runs of the same program differ, however well its work is known.
    assert judge(way(now, 1.0, {}), way(then, 0.95, {}), 0.02).keep
    # Another number of threads was calibrated by itself: nothing cancels.
    other = judge(given, way(Flags(n_threads=2), 0.7, {product: 0.5}), 0.02)
    assert other.keep


def test_several_sequences_generate_together(model, slow_cpu):
    one = placed(model, slow_cpu, work=(Workload(64, 16),), plans=1).given.parts[0]
    four = placed(model, slow_cpu, work=(Workload(64, 16, 0, 4),), plans=1).given.parts[0]
    assert four.tokens_per_second()["gen"][0] > 1.5 * one.tokens_per_second()["gen"][0]


def test_a_mix_is_the_weighted_time(model, slow_cpu):
    evaluator = Evaluator(model, ("CPU",), {1: slow_cpu},
                          (Workload(64, 0), Workload(0, 16, weight=3)), 256, 0)  # fmt: skip
    way = evaluator.way(Flags(n_threads=1))
    prompt, gen = (part.seconds for part in way.parts)
    assert way.seconds == pytest.approx((prompt + 3 * gen) / 4)


# --- what is not known


def test_work_that_was_not_measured_is_never_chosen(model):
    found = placed(model, machine(n_threads=1).with_cards({"gpu0": "rtx4090"}))
    # Tokens are looked up on the CPU: of every plan something is not known.
    assert found.verdict.keep and "nothing was measured" in found.verdict.text
    assert not found.given.usable and found.given.n_unknown > 0 and not found.ways


def test_flags_whose_time_is_not_known_are_not_recommended(model, slow_cpu):
    """The GPU was not measured, and is no card with a data sheet: its part of a prompt (op offload)
    has no time."""
    without = machine(*slow_cpu.device("CPU").samples, n_threads=1)
    found = placed(model, without, devices=(NO_CARD, "CPU"), given={"n_gpu_layers": 0})
    assert not found.verdict.keep and "not known" in found.verdict.text
    assert found.given.n_unknown and not found.ways[0].n_unknown
    assert found.chosen is found.ways[0]
    assert f"whose time is known: {found.ways[0].flags}" in found.verdict.text


def test_flags_that_take_less_at_most_are_kept():
    """Their time is not known, but its upper end is below the quickest known time."""
    def way(flags, seconds, high, unknown=0):
        cost = SimpleNamespace(
            unknown=[None] * unknown, missing_copies=(), seconds=seconds, splits=(), copies=()
        )
        row = BenchRow(0, 1, 0, seconds, (0.0, high), ((1, 0, cost),))
        return Way(flags, (WorkloadTime(Workload(0, 1), None, row),), (), {})

    best = way(Flags(n_gpu_layers=2), 1.0, 1.2)
    kept = judge(way(Flags(), 0.1, 0.9, unknown=1), best, 0.0)
    assert kept.keep and "900 ms at most" in kept.text
    left = judge(way(Flags(), 0.1, 1.1, unknown=1), best, 0.0)
    assert not left.keep and left.chosen is best


def test_nobody_chose_the_only_number_of_threads(model, slow_cpu):
    assert " -t " not in placed(model, slow_cpu, given={"n_gpu_layers": 0}).server_line()
    chosen = placed(model, slow_cpu, given={"n_gpu_layers": 0, "n_threads": 1})
    assert " -t 1" in chosen.server_line()


# --- flags


def test_words_mean_what_the_flags_do(model):
    """Upstream's own parser reads the command line that is printed."""
    choices = Choices(N_LAYER, 0, ("gpu0",), (1, 2), ("q8_0", "f16"))
    start = Flags(n_threads=1, n_gpu_layers=2)
    tried = dict.fromkeys(flags for axis in AXES for flags in axis(choices, start))
    evaluator = Evaluator(model, (CARD, "CPU"), {1: machine(), 2: machine(n_threads=2)}, WORK,
                          256, 0)  # fmt: skip
    more = [
        Flags(n_threads=1, n_gpu_layers=2, n_cpu_ffn=4, overrides=((r"blk\.3\.ffn_up", "gpu0"),)),
        Flags.of({"n_threads": 1, "cpu_moe": True, "n_cpu_ffn": 1, "swa_full": True,
                  "no_host": True}),
    ]
    for flags in [start, *tried, *more]:
        line = server_line(str(model), flags, 256, 1, (CARD, "CPU"), N_LAYER)
        with evaluator.opened(flags) as ours:
            mine = ours.plan(16, 16), ours.memory
        with llama.open_command_line(line, devices=(CARD, "CPU")) as theirs:
            other = theirs.plan(16, 16), theirs.memory
        assert mine[0].text() == other[0].text(), flags
        assert mine[1] == other[1], flags


def test_words_of_both_programs():
    flags = Flags.of({
        "n_threads": 2, "n_gpu_layers": 20, "groups": (("dense", 2),), "tensor_split": (0.3, 0.7),
        "op_offload": False, "repack": False, "cpu_moe": True,
    })  # fmt: skip
    assert flags.words("server", 4) == [
        "-ot", r"blk\.(0|1)\.ffn_(up|down|gate)\.=CPU",
        "-ngl", "20", "-ts", "0.3,0.7", "-t", "2", "--no-op-offload", "-nr", "-cmoe",
    ]  # fmt: skip
    assert flags.words("bench", 4) == [
        "-ot", r"blk\.(0|1)\.ffn_(up|down|gate)\.=CPU;\.ffn_(up|down|gate|gate_up)_(ch|)exps=CPU",
        "-ngl", "20", "-ts", "0.3/0.7", "-t", "2", "-nopo", "1", "--repack", "0",
    ]  # fmt: skip


def test_words_name_the_devices():
    assert device_words(("CPU",), "server") == ["-dev", "none"]
    assert device_words(("cpu", "BLAS"), "server") == ["-dev", "none"]
    assert device_words(("CUDA1", "CPU"), "server") == ["-dev", "CUDA1"]
    assert device_words(("CUDA0", "rpc:a:1", "rpc:b:2", "CPU"), "bench") == [
        "--rpc", "a:1,b:2", "-dev", "CUDA0/RPC0/RPC1",
    ]  # fmt: skip
    assert device_words((CARD, "CPU"), "server") == []


# --- what users have


def test_restrictions_that_were_given_are_undone(model, slow_cpu):
    for given in ({"n_cpu_ffn": N_LAYER}, {"tensor_overrides": [("ffn", "CPU")]},
                  {"tensor_overrides": [(r"ffn", "cpu")], "n_gpu_layers": -1}):  # fmt: skip
        found = placed(model, slow_cpu, given=given)
        assert not found.verdict.keep, given
        assert found.fit.seconds == found.chosen.seconds
        assert found.given.seconds > 2 * found.chosen.seconds


def test_without_layers_it_is_compared_with_what_fit_chooses(model, slow_cpu):
    with llama.open(model, devices=(CARD, "CPU"), n_gpu_layers=-1, n_ctx=80,
                    program="server", n_seq_max=1) as opened:  # fmt: skip
        whole = sum(row.nbytes for row in opened.memory if row.device == "gpu0")
    small = f"sim:gpu0,profile=rtx4090,memory={int(whole * 0.7)}"
    found = placed(model, slow_cpu, devices=(small, "CPU"))
    assert found.given.usable and found.given.flags == found.fit.flags


def test_a_mix_with_several_sequences_has_room_for_each(model, slow_cpu):
    work = (Workload(150, 8), Workload(16, 8, 0, 4))
    found = placed(model, slow_cpu, work=work, plans=20)
    assert not found.given.refused and found.n_ctx == 158 * 4


def test_a_mix_is_explained_by_one_of_its_workloads(model, slow_cpu):
    work = (Workload(64, 0, weight=16), Workload(0, 10))
    found = placed(model, slow_cpu, work=work, given={"n_gpu_layers": 0})
    assert found.verdict.reason.startswith("a token of the prompt takes ")


def test_what_was_taken_for_granted_is_said(model, slow_cpu):
    context, threads, *_more = placed(model, slow_cpu, plans=20).doubts
    assert context.startswith("no -c was given: -c 80 is taken, which the workloads need")
    assert "no -t was given: -t 1 is taken" in threads
    found = placed(model, slow_cpu, plans=20, given={"n_threads": 1,
                   "tensor_overrides": [(r"blk\.[0-9]{1,2}\.ffn", "CPU")]})  # fmt: skip
    assert any("no command line can give your -ot" in doubt for doubt in found.doubts)


def test_doubts_are_about_the_devices_that_may_be_used(model, slow_cpu):
    said = ("CPU: no time was left", "elsewhere: it was far away", "it was raining")
    other = replace(slow_cpu.devices[0], name="elsewhere")
    doubted = replace(slow_cpu, devices=(*slow_cpu.devices, other), doubts=said)
    found = " ".join(placed(model, doubted, plans=10).doubts)
    assert said[0] in found and said[2] in found and said[1] not in found


def test_a_context_as_in_training(model, slow_cpu):
    assert placed(model, slow_cpu, plans=20, n_ctx=0).n_ctx == 2048


# --- workloads


def test_workloads_are_read():
    assert Workload.parse("prompt=2000,gen=300,parallel=4,weight=0.5") == Workload(
        2000, 300, 0, 4, 0.5
    )
    assert str(Workload.parse("gen=0,depth=100")) == "prompt=512,gen=0,depth=100"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("prompt", "expected each of prompt, gen"),
        ("prompt=1,prompt=2", "at most once"),
        ("tokens=1", "expected each of prompt, gen"),
        ("prompt=x", "expected a number"),
        ("prompt=-1", "expected at least 0"),
        ("prompt=0,gen=0", "expected tokens to evaluate"),
        ("parallel=0", "expected at least 1"),
        ("weight=0", "expected a number above 0"),
        ("weight=nan", "expected a number above 0"),
    ],
)
def test_wrong_workloads_are_said(text, said):
    with pytest.raises(ValueError, match=said):
        Workload.parse(text)


# --- the command


@pytest.fixture(scope="module")
def machine_file(slow_cpu, tmp_path_factory):
    path = tmp_path_factory.mktemp("machine") / "machine.json"
    slow_cpu.save(path)
    return path


def test_the_command_prints_lines_to_run(model, machine_file):
    done = ok("place", model, "-d", CARD, "-d", "CPU", "-ngl", 0, "--machine", machine_file,
              "--prompt", 64, "--gen", 16, "--reserve", 0, "-t", 1)  # fmt: skip
    assert "times as fast" in done and "given" in done and "--fit" in done
    assert f"to run: llama-server -m {model} -c 80 -np 1 --fit off -t 1" in done
    # llama-bench cannot verify what a simulated device does
    assert "to verify" not in done
    assert "gpu0 was not measured: its times are from the data sheet of the rtx4090" in done


def test_its_data(model, machine_file):
    done = ok("place", model, "-d", CARD, "-d", "CPU", "--machine", machine_file, "--reserve", 0,
              "--workload", "prompt=64,gen=16", "--workload", "prompt=0,gen=32,weight=2",
              "--json")  # fmt: skip
    data = json.loads(done)
    assert list(data) == [
        "keep", "text", "reason", "certain_from", "command", "verify", "reserve", "chosen", "given",
        "fit", "runner_up", "measured", "n_tried", "n_plans", "ended", "assumed", "doubts",
    ]  # fmt: skip
    assert data["keep"] is True and data["chosen"] == data["given"]
    assert [part["workload"] for part in data["given"]["workloads"]] == [
        "prompt=64,gen=16", "prompt=0,gen=32,weight=2",
    ]  # fmt: skip
    for part in data["given"]["workloads"]:
        for rate in part["tokens_per_second"].values():
            low, high = rate["interval"]
            assert 0 < low <= rate["predicted"] <= high


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "place needs --machine FILE, which `ggml-py calibrate -o FILE` writes"),
        (("--machine", "M", "--workload", "x=1"), "expected each of prompt, gen"),
        (("--machine", "M", "--prompt", "0", "--gen", "0"), "expected tokens to evaluate"),
        (("--machine", "M", "--graphs", "ours"), "place plans with libllama"),
        (("--machine", "M", "--parallel", "4", "--workload", "gen=1"), "--parallel: part of"),
        (("--machine", "M", "--reserve", "99999999999999"), "is not in the range"),
        (("--machine", "M", "--measure", "-d", CARD), "a simulated device is not there"),
        (("--machine", "M", "--measure", "-d", "CPU", "--parallel", "2"), "one sequence only"),
    ],
)
def test_wrong_usage_is_said(model, machine_file, words, said):
    words = [machine_file if word == "M" else word for word in words]
    assert said in fails("place", model, *words, code=2)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("-c", "100"), "-c 100: the workloads need 640 cells"),
        (("-t", "7"), "-t 7: no machine's file has 7 threads"),
        (("--cache-types", "q6_K"), "cache type 'q6_K': llama-server takes f32, f16"),
        (("-ctk", "q9"), "cache type 'q9': llama-server takes f32, f16"),
        (("--machine", "M"), "two were measured with the same number of threads"),
        (("--measure", "--llama-bench", "/nowhere/llama-bench"), "there is no such program"),
    ],
)
def test_what_cannot_be_is_said(model, machine_file, words, said):
    words = [machine_file if word == "M" else word for word in words]
    error = fails("place", model, "-d", "CPU", "--machine", machine_file, *words)
    assert said in error


def test_no_model_is_said(machine_file, tmp_path):
    assert "nothing.gguf" in fails("place", tmp_path / "nothing.gguf", "--machine", machine_file)


def test_flags_whose_gain_may_be_an_error_are_not_suggested():
    """Of several changes only those stay without which it would be clearly slower."""
    saves = {"n_threads": (2, 0.5), "flash_attn": (False, 0.97), "n_ubatch": (256, 0.98)}

    def look(flags):
        seconds = 1.0
        for name, (value, factor) in saves.items():
            seconds *= factor if getattr(flags, name) == value else 1.0
        return SimpleNamespace(flags=flags, seconds=seconds, usable=True, errors={})

    given = Flags(n_threads=1, n_gpu_layers=0)
    best = look(given.but(**{name: value for name, (value, _) in saves.items()}))
    chosen = _simplest(best, given, look)
    assert chosen.flags == given.but(n_threads=2)
    assert chosen.seconds <= best.seconds + doubt(chosen, best)
