"""What verbs print in a terminal of 80 columns: lines end at words, numbers are whole, and tables
have one style."""

import re

import pytest

from ggml_py.models import load
from ggml_py.models.synthetic import LlamaSpec, write_llama

from ..support.foreign_text import run
from ..support.measured import knows_all

GPU = ("-d", "sim:gpu0,profile=rtx4090,memory=24M", "-d", "CPU")
SOME = (*GPU, "-ngl", "3")
WORDS = {
    "plan": ("plan", "m.gguf", *SOME),
    "every node": ("plan", "m.gguf", *SOME, "-v"),
    "passes": ("plan", "m.gguf", *SOME, "--passes"),
    "advice": ("plan", "m.gguf", *SOME, "--advice"),
    "what if": ("plan", "m.gguf", *SOME, "--what-if", "op_offload=off"),
    "saved": ("plan", "p.json.gz", "-v"),
    "no room": ("plan", "m.gguf", *GPU, "-c", "65536", "-ngl", "all"),
    "explain": ("explain", "m.gguf", "result_output", *SOME),
    "why-not": ("why-not", "m.gguf", "Qcur-0", "gpu0", *SOME),
    "diff": ("diff", "p.json.gz", "m.gguf", *SOME),
    "sweep": ("sweep", "m.gguf", *SOME, "--n-tokens", "1,64"),
    "cost": ("cost", "m.gguf", "-d", "CPU", "--machine", "machine.json", "-p", "16", "-n", "8"),
    "cost of a plan": ("cost", "p.json.gz", "--machine", "machine.json"),
    "place": ("place", "m.gguf", "-d", "CPU", "--machine", "machine.json", "--plans", "4"),
    "memory": ("memory", "m.gguf", *SOME, "--no-changes"),
    "no memory": ("memory", "m.gguf", *GPU, "-c", "65536", "-ngl", "all"),
    "check": ("check", "m.gguf", *SOME),
    "devices": ("devices",),
    "releases": ("releases",),
}  # fmt: skip
LIBLLAMA = {"no room", "place", "memory", "no memory", "check"}
TO_COPY = re.compile(r"(to run|to verify|run|more):? |   > .*--")  # lines that are copied are whole


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("eighty")
    write_llama(made / "m.gguf", LlamaSpec(n_layer=6, n_vocab=512))
    with load(made / "m.gguf", devices=["CPU"], n_ctx=64) as model:
        plans = [model.plan(n, past) for n, past in ((16, 0), (1, 0), (1, 4))]
        knows_all(plans, processor="a processor with a long name").save(made / "machine.json")
    run(["plan", "m.gguf", "-d", "CPU", "-o", "p.json.gz"], made)
    return made


@pytest.mark.parametrize(
    "words",
    [pytest.param(words, marks=pytest.mark.thorough("programs")) if name in LIBLLAMA else words
     for name, words in WORDS.items()],
    ids=WORDS,
)  # fmt: skip
@pytest.mark.parametrize("width", [80, 40])
def test_lines_end_at_words_and_numbers_are_whole(width, words, folder):
    more = {} if words[0] in ("check", "place", "memory") else {"GGML_PY_NO_BUILD": "1"}
    narrow = run([*words], folder, {"COLUMNS": str(width), **more})
    wide = run([*words], folder, {"COLUMNS": "100000", **more})
    assert wide.code == narrow.code
    for line in narrow.out.splitlines():
        assert len(line) <= 80 or width < 80 or TO_COPY.match(line) or " " not in line.strip(), line
        assert not set(line) & set("│┃━─"), line
    numbers = re.findall(r"(?<![\w.])\d[\d,.]*\d(?![\w.])", wide.out)
    kept = re.sub(r"\s+", " ", narrow.out)
    if words[0] == "releases" and width < 80:
        return  # versions are texts, which fold
    assert [n for n in numbers if n not in kept] == []
