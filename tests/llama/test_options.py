"""The table of options: whoever takes, checks, passes on or prints one goes by it."""

import inspect
from dataclasses import fields

import pytest

from ggml_py.cli.plan import command as plan
from ggml_py.llama.flags import words_of
from ggml_py.llama.options import TABLE, Options, checked
from ggml_py.models import load
from ggml_py.place.placing_flags import Flags

LOADS_OWN = {"graphs", "build", "header_only"}
NOT_IN_LLAMA = {"devices", "tensor_overrides", "progress", "program"}


def test_a_row_for_each_keyword_of_load():
    parameters = inspect.signature(load).parameters
    found = {name: p.default for name, p in parameters.items() if name not in (*LOADS_OWN, "path")}
    assert found == {option.name: option.default for option in TABLE}
    assert sorted(found) == sorted(field.name for field in fields(Options))


def test_verbs_have_the_flags_of_the_table():
    known = {o.name: {*o.opts, *o.secondary_opts} for o in plan.params}
    for option in TABLE:
        if option.flags:
            assert known[option.verb or option.name] == {*option.flags, *option.off}


@pytest.mark.parametrize("option", [o for o in TABLE if o.in_line], ids=lambda o: o.name)
def test_each_has_a_place_in_a_command_line(option):
    """What is not the default is printed, and read back by a verb as the same."""
    other = {
        "bool": not option.default, "int": 3, "layers": 2, "parts": (1.0, 3.0), "type": "q8_0",
        "word": next(reversed(option.words), None),
    }[option.kind]  # fmt: skip
    defaults = {row.name: row.default for row in TABLE} | {"flash_attn": "on"}
    line = words_of(checked(defaults | {option.name: other}))
    given = ["m.gguf", *line]
    context = plan.make_context("plan", given)
    assert context.params["model"].given == "m.gguf"
    read = context.params[option.verb or option.name]
    assert read == other
    if option.is_flag:
        flags = Flags.of({option.name: other})
        assert str(flags).split() == option.line(other)
        assert flags.options[option.name] == other
        if option.name != "cpu_moe":  # which llama-bench has as a pattern
            assert flags.words("bench", 0) == (option.bench_line(other) if option.bench else [])


@pytest.mark.thorough("programs")
def test_fields_are_those_of_llama_h():
    """Each option reaches the field of llama.h that its row names."""
    from ggml_py.llama.library import library

    found = library(build=False)
    structs = {
        "model": found.lib.llama_model_default_params(),
        "context": found.lib.llama_context_default_params(),
    }
    named = {option.name for option in TABLE if option.field}
    for option in TABLE:
        struct, _, field = option.field.partition(".")
        if field:
            assert hasattr(structs[struct], field)
    special = {"cpu_moe", "n_cpu_moe", "n_cpu_ffn", "tensor_split", "n_threads"}  # not one field
    assert {option.name for option in TABLE} - named == special | NOT_IN_LLAMA
