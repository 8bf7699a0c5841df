"""Device profiles: names and files that are none, and what is no tensor."""

import ggml_py as ggml

from ..misuses import misuse


def _file(env, content):
    path = env.tmp_path / "card.csv"
    path.write_bytes(content)
    return path


def _closed(env):
    context = ggml.Context()
    tensor = context.relu(context.new_tensor("f32", 8))
    context.close()
    return tensor


MADE_BY = "test-backend-ops support --test-file OPS --output csv"
MISUSES = [
    misuse("profile-unknown", lambda e: ggml.load_profile("tpu"),
           ggml.UnknownDeviceError, "no device profile 'tpu'", "cuda"),
    misuse("profile-number", lambda e: ggml.load_profile(3),
           TypeError, "got int", "expected a str or a path"),
    misuse("profile-no-file", lambda e: ggml.load_profile(e.tmp_path / "none.csv"),
           ggml.ArgumentError, "none.csv cannot be read", "No such file"),
    misuse("profile-folder", lambda e: ggml.load_profile(e.tmp_path),
           ggml.ArgumentError, "cannot be read", "is a folder"),
    misuse("profile-empty", lambda e: ggml.load_profile(_file(e, b"")),
           ggml.ArgumentError, "no column op_name", MADE_BY),
    misuse("profile-other-csv", lambda e: ggml.load_profile(_file(e, b"op_name,x\nADD,1\n")),
           ggml.ArgumentError, "no column op_params, supported", MADE_BY),
    misuse("profile-no-rows",
           lambda e: ggml.load_profile(_file(e, b"op_name,op_params,supported\n")),
           ggml.ArgumentError, "has no op of a test file", MADE_BY),
    misuse("profile-binary", lambda e: ggml.load_profile(_file(e, b"\xff\xfe\x00")),
           ggml.ArgumentError, "cannot be read as CSV", "it is not UTF-16"),
    misuse("decide-str", lambda e: ggml.load_profile("cuda").decide("ADD"),
           TypeError, "got str", "expected a Tensor, a node of a plan or a Call"),
    misuse("decide-none", lambda e: ggml.load_profile("cuda").supports(None),
           TypeError, "got NoneType", "expected a Tensor, a node of a plan or a Call"),
    misuse("decide-graph", lambda e: ggml.load_profile("cuda").decide(e.graph),
           TypeError, "got Graph", "expected a Tensor, a node of a plan or a Call"),
    misuse("decide-debug-log",
           lambda e: ggml.load_profile("cuda").decide(
               ggml.Plan.from_debug_log(e.scheduler.plan(e.graph).text()).nodes[0]),
           ggml.ArgumentError, "of a plan from a debug log", "that a scheduler made"),
    misuse("decide-closed", lambda e: ggml.load_profile("cuda").decide(_closed(e)),
           ggml.ClosedError, "this Context is closed", "make another"),
]  # fmt: skip
