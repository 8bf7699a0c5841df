"""What devices would answer if they were otherwise, while a `with` block asks them on this thread.

Any device can be assumed to be otherwise: a simulated one, the CPU, a GPU that is here. Natively
this is native/assume.h.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from .. import enums
from ..backends.device import Device
from ..boundary.ffi import ffi, lib, text
from ..tensors.lent import Lent
from ..tensors.tensor import Tensor
from .calls import Asked

Answer = Callable[[Tensor], "bool | None"]  # None: what the device itself answers
_DEVICE_DECIDES = 2


class _Assumed(Asked):
    """The user data of `gp_on_supports` for an assumption."""

    __slots__ = ()

    def _run(self, ptr: Any) -> int:
        lent = Lent("a device's assumed answers")
        try:
            answer = self.function(Tensor(ptr, lent))
        finally:
            lent.closed = True
        return _DEVICE_DECIDES if answer is None else int(answer)


@contextmanager
def assuming(supports: Mapping[Device, Answer], offload: Mapping[Device, Answer]) -> Iterator[None]:
    """Devices answer by these functions whether they support an op, and whether they want it
    although its weights must be copied. Other threads get the devices' own answers."""
    devices = list(dict.fromkeys((*supports, *offload)))
    callbacks = [
        [_Assumed(asked[device]) if device in asked else None for device in devices]
        for asked in (supports, offload)
    ]
    rows = ffi.new("struct gp_assumption[]", len(devices))
    for row, device, *both in zip(rows, devices, *callbacks, strict=True):
        row.device = device.ptr
        row.supports, row.offload = (ffi.NULL if c is None else c.handle for c in both)
    lib.gp_assume(rows, len(devices))
    try:
        yield
    finally:
        lib.gp_assume(rows, 0)


def means(which: str, tensor: Tensor) -> bool:
    """Whether `which` means that tensor: its op or op description, its name, or a shell pattern of
    one of these. As in the what-ifs of plans, it never means a leaf, which no op makes."""
    if tensor.op == enums.Op.NONE:
        return False
    words = (tensor.op.name, text(lib.ggml_op_desc(tensor.ptr)))
    return which.upper() in words or any(
        fnmatch.fnmatchcase(word, which) for word in (tensor.name, *words)
    )
