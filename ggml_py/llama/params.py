"""llama.cpp's parameters, as its C structs, from the options of `load`."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..backends.buffer import BufferType
from ..backends.device import Device, default_n_threads, device
from ..boundary.ffi import NULL, text
from ..enums import BackendDevType
from ..errors import ModelError
from ..sim.given import named_devices
from .library import Library
from .options import BY_NAME, LOAD_MODES, TABLE, Options
from .overrides import cpu_overrides, resolve_overrides

if TYPE_CHECKING:
    from .command_line import CommandLine

log = logging.getLogger("ggml_py")

GPU_TYPES = (BackendDevType.GPU, BackendDevType.IGPU)
_ABOUT_GPUS = ("n_gpu_layers", "split_mode", "main_gpu", "tensor_split")
_UNLOCKED = {2: 0, 3: 1}  # LLAMA_LOAD_MODE_MLOCK: as NONE, MMAP_MLOCK: as MMAP


class Params:
    """The parameters of a model and of its contexts, and what they point to."""

    def __init__(
        self, library: Library, options: Options, n_layer: int, line: CommandLine | None = None
    ) -> None:
        """With `line` all that a command line asks for, also what `options` have no name for."""
        self._ffi, self._lib = library.ffi, library.lib
        self._line = line
        self.options = options
        self.devices = given_devices(options.devices)
        self.gpus = [d for d in self.devices if d.type in GPU_TYPES]
        self.accelerators = [d for d in self.devices if d.type == BackendDevType.ACCEL]
        check_gpus(options, self.devices)
        self._kept: list[Any] = []
        self.model = self._model_params(n_layer)
        self.context = self._context_params()

    def _keep(self, cdata: Any) -> Any:
        self._kept.append(cdata)
        return cdata

    def _model_params(self, n_layer: int) -> Any:
        ffi, options, line = self._ffi, self.options, self._line
        wanted = self._lib.llama_model_default_params() if line is None else line.model
        params = ffi.new("struct llama_model_params *", wanted)
        params.devices = self._keep(
            ffi.new("ggml_backend_dev_t[]", [*(d.ptr for d in self.gpus), NULL])
        )
        if line is not None:
            return params
        self._fill(params, "model")
        if options.tensor_split:
            n = self._lib.llama_max_devices()
            split = [*map(float, options.tensor_split), *[0.0] * n][:n]
            params.tensor_split = self._keep(ffi.new("float[]", split))
        pairs = [
            *options.tensor_overrides,
            *cpu_overrides(options.cpu_moe, options.n_cpu_moe, options.n_cpu_ffn, n_layer),
        ]
        if pairs:
            params.tensor_buft_overrides = self._overrides(pairs)
        return params

    @property
    def maps_files(self) -> bool:
        """Whether weights may stay in the mapped file."""
        return int(self.model.load_mode) != LOAD_MODES["none"]

    @property
    def expert_cache(self) -> int:
        """Bytes of the expert cache; 0 without one, also in releases that know none."""
        return int(getattr(self.context, "moe_cache_size", 0))

    @contextmanager
    def planning(self) -> Iterator[None]:
        """In the block, a model is loaded without its weights, and so without locking them."""
        wanted = self.model.load_mode
        self.model.load_mode = _UNLOCKED.get(int(wanted), wanted)
        self.model.no_alloc = True
        try:
            yield
        finally:
            self.model.load_mode, self.model.no_alloc = wanted, False

    @contextmanager
    def progress(self) -> Iterator[None]:
        """In the block, a model that loads its weights calls the `progress` of the options. Raises
        what that raises, and `ModelError` if it returns False."""
        call, raised = self.options.progress, list[BaseException]()
        if call is None:
            yield
            return

        def on_progress(share: float, _data: Any) -> bool:
            try:
                if call(float(share)) is False:
                    raise ModelError("progress stopped the loading")
            except BaseException as error:
                raised.append(error)
            return not raised

        callback = self._ffi.callback("bool(float, void *)", on_progress)  # while it exists
        self.model.progress_callback = callback
        try:
            yield
        finally:
            self.model.progress_callback = NULL
            del callback
            if raised:
                raise raised[0]

    def choose_accelerators(self) -> None:
        """Contexts that libllama makes from now on use the accelerators of these devices, and no
        others. Without a choice they use all that are registered."""
        used = [d.ptr for d in self.accelerators]
        given = self._ffi.new("ggml_backend_dev_t[]", [*used, NULL])
        self._lib.gpl_use_accelerators(given, len(used))

    def fit(self, path: Path, margins: Sequence[int], n_ctx_min: int) -> bool:
        """Changes the numbers that nobody gave (n_gpu_layers below 0, n_ctx 0, and where weights
        are) so that the model fits into the devices' free memory. Returns whether it does.
        C++: common_fit_params"""
        ffi, lib = self._ffi, self._lib
        n = lib.llama_max_devices()
        split = self._keep(ffi.new("float[]", n))
        overrides = self._keep(
            ffi.new(
                "struct llama_model_tensor_buft_override[]", lib.llama_max_tensor_buft_overrides()
            )
        )
        each = list(margins) * n if len(margins) == 1 else [*margins, *[margins[-1]] * n]
        most = ffi.new("size_t[]", each[:n])
        self.choose_accelerators()  # the contexts that it makes are those of this model
        status = lib.gpl_fit(
            os.fsencode(path), self.model, self.context, split, overrides, most, n_ctx_min
        )
        return bool(status == 0)  # loading says why it failed: the programs go on, too

    @property
    def fitted(self) -> dict[str, Any]:
        """The numbers as they are now, by the names of `load`."""
        model = self.model
        found: dict[str, Any] = {}
        found["n_gpu_layers"] = int(model.n_gpu_layers)
        found["n_ctx"] = int(self.context.n_ctx)
        if model.tensor_split != NULL and len(self.gpus) > 1:
            found["tensor_split"] = tuple(model.tensor_split[0 : len(self.gpus)])
        if model.tensor_buft_overrides != NULL:
            rows, i = [], 0
            while model.tensor_buft_overrides[i].pattern != NULL:
                row = model.tensor_buft_overrides[i]
                rows.append((text(row.pattern), BufferType(row.buft).name))
                i += 1
            if rows:
                found["tensor_overrides"] = tuple(rows)
        return found

    @property
    def fit_arguments(self) -> str:
        """The same as llama-fit-params prints it."""
        model = self.model
        words = [f"-c {self.context.n_ctx} -ngl {model.n_gpu_layers}"]
        if model.tensor_split != NULL:
            split = list(model.tensor_split[0 : self._lib.llama_max_devices()])
            while len(split) > 1 and not split[-1]:
                split.pop()
            if len(split) > 1:
                words.append(f"-ts {','.join(str(int(part)) for part in split)}")
        rows = self.fitted.get("tensor_overrides", ())
        if rows:
            words.append(f'-ot "{",".join(f"{pattern}={name}" for pattern, name in rows)}"')
        return " ".join(words)

    def _overrides(self, pairs: Sequence[Any]) -> Any:
        ffi = self._ffi
        rows = []
        for override in resolve_overrides(pairs, self.devices):
            pattern = self._keep(ffi.new("char[]", override.pattern.pattern.encode()))
            rows.append((pattern, override.buffer_type.ptr))
        return self._keep(
            ffi.new("struct llama_model_tensor_buft_override[]", [*rows, (NULL, NULL)])
        )

    def _context_params(self) -> Any:
        ffi, options, line = self._ffi, self.options, self._line
        wanted = self._lib.llama_context_default_params() if line is None else line.context
        params = ffi.new("struct llama_context_params *", wanted)
        self._fill(params, "context")
        if line is None:
            n = default_n_threads() if options.n_threads is None else options.n_threads
            params.n_threads = params.n_threads_batch = n
        return params

    def _fill(self, params: Any, of: str) -> None:
        """Sets each field of llama.h that an option is."""
        for option in TABLE:
            struct, _, field = option.field.partition(".")
            if struct == of:
                value = getattr(self.options, option.name)
                setattr(params, field, option.words[value] if option.words else value)


def given_devices(given: Sequence[str | Device]) -> list[Device]:
    """The devices in their order, and a CPU if there is none among them. "rpc:HOST:PORT" stands for
    all devices of that server, "sim:NAME" for a simulated one, with its settings
    (`sim.text.sim_device_of`). Raises `UnknownDeviceError` with the known names, TypeError for a
    single device, and `RpcError`."""
    if isinstance(given, (str, Device)):
        raise TypeError(f"devices={given!r}: expected a sequence of devices, like ({given!r},)")
    chosen: dict[Device, None] = {}
    for one in given:
        found = named_devices(one)
        if chosen.keys() >= {*found}:
            log.warning(
                "device %s is given twice and counts once: give the second another name", one
            )
        chosen |= dict.fromkeys(found)
    devices = list(chosen)
    if not any(d.type == BackendDevType.CPU for d in devices):
        devices.append(device("CPU"))
    return devices


def check_gpus(options: Options, devices: Sequence[Device]) -> None:
    """Raises `ModelError` for a main_gpu that does not exist and for a bad tensor_split. Logs a
    warning for each given option about GPUs if there is no GPU: llama.cpp ignores them then."""
    gpus = [d.name for d in devices if d.type in GPU_TYPES]
    names = ", ".join(gpus) or "none"
    split = _parts(options.tensor_split)
    if len(split) > max(1, len(gpus)):
        raise ModelError(
            f"tensor_split={options.tensor_split!r}: {len(split)} parts, expected at most one per "
            f"GPU (GPUs: {names})"
        )
    if gpus and options.split_mode == "none" and options.main_gpu >= len(gpus):
        raise ModelError(
            f"main_gpu={options.main_gpu}: expected a number below {len(gpus)} ({names})"
        )
    for name in () if gpus else _ABOUT_GPUS:
        value = getattr(options, name)
        if value != -1 and not BY_NAME[name].is_default(value):
            there = ", ".join(d.name for d in devices)
            log.warning("%s=%r has no effect: no GPU among the devices (%s)", name, value, there)


def _parts(tensor_split: Any) -> list[float]:
    try:
        parts = [float(part) for part in tensor_split or ()]
    except (TypeError, ValueError):
        parts = [-1.0]
    if all(0 <= part < math.inf for part in parts):
        return parts
    raise ModelError(f"tensor_split={tensor_split!r}: expected numbers >= 0, like (3, 1)")
