"""Simulated devices."""

import ggml_py as ggml
from ggml_py.sim.given import named_devices
from ggml_py.sim.text import sim_device_of

from ..misuses import misuse

BAD = ggml.ArgumentError


def _row(id, given, expected, error=BAD, name="sim", **settings):
    return misuse(f"sim/{id}", lambda e: ggml.sim_device(name, **settings), error, given, expected)


def _text(id, text, given, expected, error=BAD):
    return misuse(f"sim-text/{id}", lambda e: sim_device_of(text), error, given, expected)


def _made(e, **settings):
    """A device that is closed when the row is over."""
    return e.later(ggml.sim_device("sim", **settings))


def _open(e, **settings):
    device = _made(e, **settings)
    return e.later(device.init(n_threads=1)).device


def _configured(id, act, given, expected, error=BAD):
    return misuse(f"sim-configure/{id}", act, error, given, expected)


class NoProfile:
    supports = "yes"


def _cpu(id, text, given):
    expected = "CPU,memory=BYTES, such as CPU,memory=64G"
    return misuse(f"sim-cpu/{id}", lambda e: named_devices(text), BAD, given, expected)


MISUSES = [
    _cpu("profile", "CPU,profile=cuda", "CPU,profile=cuda"),
    _cpu("no-size", "CPU,memory=", "CPU,memory="),
    _cpu("two", "CPU,memory=1G,max_size=2M", "CPU,memory=1G,max_size=2M"),
    _cpu("bare", "CPU,", "CPU,: the CPU is this machine's"),
    _row("name-int", "int 5", "expected a str", TypeError, name=5),
    _row("name-empty", "''", "1 to 63 bytes", name=""),
    _row("name-long", "'xxx", "1 to 63 bytes", name="x" * 64),
    _row("name-of-another", "named 'cpu'", "choose another name", name="cpu"),
    _row("memory-zero", "memory=0", "at least 1", memory=0),
    _row("memory-text", "str '8G'", "memory: expected a whole number", TypeError, memory="8G"),
    _row("memory-float", "float 8000000000.0", "a whole number", TypeError, memory=8e9),
    _row("max_size-negative", "max_size=-1", "at least 1", max_size=-1),
    _row("alignment-48", "alignment=48", "a power of two", alignment=48),
    _row("alignment-small", "alignment=16", "expected 32 to", alignment=16),
    _row("batch-negative", "offload_min_batch=-1", "at least 0", offload_min_batch=-1),
    _row("type-cpu", "type='cpu'", "'gpu', 'igpu' or 'accel'", type="cpu"),
    _row("type-unknown", "'npu'", "expected one of", type="npu"),
    _row("supports-str", "str 'MUL_MAT'", "a table {op: types}", TypeError, supports="MUL_MAT"),
    _row("supports-list", "got list", "a table {op: types}", TypeError, supports=["MUL_MAT"]),
    _row("supports-typo", "'MULMAT'", "the nearest names are", supports={"MULMAT": True}),
    _row("supports-no-name", "5", "Op, UnaryOp and GluOp", supports={5: True}),
    _row("supports-types-str", "str 'f16'", "True, False or types", TypeError,
         supports={"MUL_MAT": "f16"}),
    _row("supports-type-unknown", "'q9'", "expected one of", supports={"MUL_MAT": ["q9"]}),
    _row("profile-and-supports", "profile= and supports=", "give only one",
         profile=NoProfile(), supports=True),
    _row("profile-object", "got NoProfile", "supports(tensor)", TypeError, profile=NoProfile()),
    _row("graph_optimize-name", "graph_optimize='cuda'", "a function of the split's nodes, or",
         graph_optimize="cuda"),
    _row("graph_optimize-list", "graph_optimize=[1]", "a function of the split's nodes, or",
         graph_optimize=[1]),
    _row("wrong-view", "wrong='VIEW'", "an op that computes", wrong="VIEW"),
    _row("wrong-unknown", "'RMSNORM'", "expected one of", wrong="RMSNORM"),
    _row("host-and-pinned", "host=True", "no host_buffer", host=True, host_buffer=True),
    misuse("sim/buft_of-cpu", lambda e: ggml.sim_device("sim", buft_of=e.cpu.device), BAD,
           "buft_of=<Device CPU", "another simulated device"),
    misuse("sim/buft_of-name", lambda e: ggml.sim_device("sim", buft_of="gpu0"), TypeError,
           "str 'gpu0'", "expected a Device"),
    misuse("sim/buft_of-shared",
           lambda e: ggml.sim_device("c", buft_of=e.later(
               ggml.sim_device("b", buft_of=_made(e)))), BAD,
           "buft_of=<SimDevice b", "its own buffer type"),
    _configured("unknown", lambda e: _made(e).configure(colour=1), "colour", "settings of",
                TypeError),
    _configured("itself", lambda e: _made(e).configure(buft_of=ggml.device("sim")),
                "buft_of=<Device sim", "another simulated device"),
    _configured("in-use", lambda e: _open(e).configure(memory=5), "still open: 1 backend",
                "close them first"),
    misuse("sim-made-again/in-use",
           lambda e: _open(e) and ggml.sim_device("sim", memory=5), BAD, "still open: 1 backend",
           "choose another name"),
    misuse("sim-close/in-use", lambda e: _open(e).close(), BAD, "still open: 1 backend",
           "cannot be closed yet"),
    _text("empty", "", "''", "1 to 63 bytes"),
    _text("setting", "sim,colour=red", "'colour'", "the settings are"),
    _text("twice", "sim,memory=1,memory=2", "'memory' is given twice", "the settings are"),
    _text("memory", "sim,memory=lots", "memory=lots", "512M or 8G"),
    _text("flag", "sim,host=yes", "host=yes", "expected 1, 0"),
    _text("number", "sim,alignment=big", "alignment=big", "a whole number"),
    _text("no-value", "sim,profile", "profile", "a value after '='"),
    _text("op", "sim,supports=MULMAT", "'MULMAT'", "MUL_MAT"),
    _text("set-alone", "sim,set.major=9", "set.major", "profile="),
    _text("buft_of", "sim,buft_of=nobody", "'nobody'", "there are:", ggml.UnknownDeviceError),
]  # fmt: skip
