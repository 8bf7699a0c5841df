"""The Python code uses every public function of ggml's headers, or the function is listed here with
the reason why it is only in `lib`. There it can also be called, through its guard.
"""

import json
import re
from functools import cache
from pathlib import Path

import pytest

import ggml_py as ggml
from ggml_py.boundary.ffi import BUILD

pytestmark = pytest.mark.needs(release="default")

# Names, as regular expressions, by reason.
ONLY_IN_LIB = {
    "numpy does it": (
        "ggml_(fp16|bf16|fp32)_to_(fp16|bf16|fp32)(_row|_row_ref)?"
        "|ggml_cpu_(fp16|bf16|fp32)_to_(fp16|bf16|fp32|i32)|ggml_unravel_index"
    ),
    "Python does it (time, open)": "ggml_time_(init|ms|us)|ggml_cycles(_per_ms)?|ggml_fopen",
    "the build's build.json has it": "ggml_version|ggml_commit",
    "reserved for guards and _log": "ggml_set_abort_callback|ggml_log_get",
    "prints to stdout; use repr()": "ggml_print_objects?",
    "a number of a file format that is not used here": "ggml_ftype_to_ggml_type",
    "the same as another function": "ggml_is_contiguous_0|ggml_type_sizef",
    "for writing or measuring kernels": (
        "ggml_op_symbol|ggml_rope_yarn_corr_dims|ggml_guid_matches|ggml_get_type_traits_cpu"
    ),
    "Tensor.op and repr() have it": "ggml_get_(unary|glu)_op",
    "Tensor's own attributes": (
        "ggml_get_(data|data_f32|name)|ggml_is_view|ggml_flash_attn_ext_get_prec"
    ),
    "Context grows, and never allocates data": (
        "ggml_tensor_overhead|ggml_(get|set)_no_alloc|ggml_new_buffer|ggml_new_(i32|f32)"
        "|ggml_graph_compute_with_ctx"
    ),
    "close a Context and make a new one": "ggml_reset",
    "Context.new_tensor takes any number of dimensions": "ggml_new_tensor_[1-4]d",
    "Tensor.set and Tensor.get do it, on any device": (
        "ggml_set_(i32|f32)|ggml_set_zero|ggml_[gs]et_(i32|f32)_(1d|nd)"
    ),
    "its memory must stay until synchronize(); Tensor.set and get copy": (
        "ggml_backend_tensor_[gs]et(_2d)?_async|ggml_backend_graph_compute_async"
    ),
    "Graph is made with its size, and its nodes are a tuple": (
        "ggml_new_graph|ggml_graph_overhead|ggml_graph_node|ggml_graph_dup"
    ),
    "Tensor.set does it when necessary": "ggml_quantize_(init|free)",
    "ThreadPool's parameters are its arguments": "ggml_threadpool_params_(default|match)",
    "the form with _n is also used for one": "ggml_gallocr_new|ggml_gallocr_reserve",
    "the same through Backend.buffer_type": (
        "ggml_backend_alloc_ctx_tensors(_from_buft_size)?|ggml_backend_alloc_buffer"
        "|ggml_backend_get_(alignment|max_size)|ggml_backend_buffer_get_(alignment|max_size)"
        "|ggml_backend_cpu_buffer_type"
    ),
    "native/context_alloc.cpp calls it, for Context.alloc": (
        "ggml_backend_alloc_ctx_tensors_from_buft"
    ),
    "for several tensors at once: Context.alloc": (
        "ggml_backend_buft_alloc_buffer_n|ggml_backend_buft_get_alloc_size_n"
    ),
    "done by allocators": (
        "ggml_backend_buffer_(init_tensor|reset)"
    ),
    "Backend.device has it": (
        "ggml_backend_guid|ggml_backend_is_(cpu|blas|rpc)"
    ),
    "Device.init makes them": "ggml_backend_init_by_(name|type)|ggml_backend_(cpu|blas|rpc)_init",
    "best_device().init()": "ggml_backend_init_best",
    "load_backend for one; a portable build loads its own": (
        "ggml_backend_load_all|ggml_backend_blas_reg"
    ),
    "for writing a device in C": "ggml_backend_device_register",
    "Scheduler.backends": "ggml_backend_sched_get_(n_backends|backend)",
    "its callback returns a struct by value, which Python cannot implement": (
        "ggml_backend_meta_device|ggml_backend_meta_split_axis_name"
    ),
    "`compare` makes the copy": "ggml_backend_graph_copy(_free)?",
    "called through the registry, so that it works for loaded modules": (
        "ggml_numa_init|ggml_is_numa"
        "|ggml_backend_cpu_set_(n_threads|threadpool|abort_callback|use_ref)"
        "|ggml_backend_blas_set_n_threads"
    ),
    "Device.features says it": "ggml_cpu_has_.*|ggml_cpu_get_(sve_cnt|rvv_vlen)",
    "done when the first device is used": "ggml_cpu_init",
    "Device.buffer_type and Device.memory": "ggml_backend_rpc_(buffer_type|get_device_memory)",
    "a server is a separate process: upstream's rpc-server": "ggml_backend_rpc_start_server",
    "by the type's name, in gguf.py and gguf_writer.py": (
        "gguf_get_val_([ui](8|16|32|64)|f32|f64|bool)|gguf_set_val_([ui](8|16|64)|i32|f32|f64|bool)"
    ),
    "Gguf reads them from the file's header by itself": (
        "gguf_get_val_data|gguf_find_tensor|gguf_get_tensor_(name|ne|type|size)"
    ),
    "files have paths": "gguf_init_from_(file_ptr|buffer|callback)|gguf_write_to_file(_ptr)?",
    "GgufWriter writes once, all that it was given": (
        "gguf_remove_key|gguf_set_kv|gguf_set_tensor_(type|data)"
    ),
    "Python has loops: opt_fit.py": "ggml_opt_(epoch|epoch_callback_progress_bar|fit)",
    "AdamW and SGD are objects": (
        "ggml_opt_get_default_optimizer_params|ggml_opt_optimizer_name"
    ),
    "OptContext is given them": "ggml_opt_(inputs|outputs)",
    "Scheduler.reserve_size, which changes nothing": "ggml_backend_sched_reserve_size",
}


@cache
def bound() -> frozenset[str]:
    bindings = json.loads((BUILD["folder"] / "bindings.json").read_text())["bound"]
    return frozenset(name for names in bindings.values() for name in names)


@cache
def used() -> frozenset[str]:
    folder = Path(ggml.__file__).parent
    files = [p for p in folder.rglob("*.py") if "native" not in p.parts]
    text = "\n".join(file.read_text() for file in files)
    return frozenset(re.findall(r"\blib\.(\w+)", text))


def matching(pattern: str) -> set[str]:
    return {name for name in bound() if re.fullmatch(pattern, name)}


def test_every_function_is_used_or_has_a_reason():
    listed = set().union(*map(matching, ONLY_IN_LIB.values()))
    assert sorted(bound() - used() - listed) == []


@pytest.mark.parametrize("reason", ONLY_IN_LIB)
def test_reasons_are_of_functions_that_are_not_used(reason):
    for alternative in re.split(r"\|(?=gg(?:ml|uf)_)", ONLY_IN_LIB[reason]):
        names = matching(alternative)
        assert names, f"{alternative}: no such function"
        assert sorted(names & used()) == [], "now used: remove them from the table"


def test_the_check_would_notice():
    assert "ggml_backend_graph_compute" in used()
    assert not {"ggml_made_up"} & bound()
    assert len(bound()) > 600
