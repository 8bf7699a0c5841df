"""Thread pools: threads of CPU backends that are kept between computes.

1. Without a pool, upstream starts and ends its threads for every compute.
2. The thread that computes is worker 0 of the pool; the others belong to the pool. When a pool is
   made, upstream gives its CPUs and priority to the calling thread, for good. So a pool is made on
   a thread that then ends, and a computing thread has them only for the compute (`as_worker_0`).
3. A pool computes one graph at a time, without a lock; `in_use` refuses a second. Pausing the pool
   during a compute would leave it waiting for ever for sleeping workers.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from .. import enums
from ..boundary.arguments import describe, enum_of, integer
from ..boundary.ffi import ffi, lib
from ..boundary.handle import Handle, those_of
from ..boundary.uses import in_use
from ..errors import ArgumentError, MissingFunctionError
from ..typed import typed
from .device import Device, device

if TYPE_CHECKING:
    from .backend import Backend

T = TypeVar("T")

# The policies and priorities that upstream sets (ggml_thread_apply_priority in ggml-cpu.c).
_POLICIES = {
    enums.SchedPriority.LOW: ("SCHED_BATCH", 0),
    enums.SchedPriority.MEDIUM: ("SCHED_FIFO", 40),
    enums.SchedPriority.HIGH: ("SCHED_FIFO", 80),
    enums.SchedPriority.REALTIME: ("SCHED_FIFO", 90),
}


class ThreadPool(Handle):
    """Threads for CPU backends: `backend.set_threadpool(pool)`. Several backends can share one.

    Closing it removes it from its backends, closes graph plans made with it and ends its threads.
    C: ggml_threadpool_new
    """

    __slots__ = (
        "_backends",
        "cpumask",
        "device",
        "is_placed",
        "n_threads",
        "poll",
        "prio",
        "strict_cpu",
    )

    @typed
    def __init__(
        self,
        n_threads: int,
        cpumask: Iterable[int] | None = None,
        prio: enums.SchedPriority | int | str = "normal",
        poll: int = 50,
        strict_cpu: bool = False,
        paused: bool = False,
        device: Device | None = None,
    ) -> None:
        """`n_threads` includes the thread that computes. `cpumask` lists the CPUs that the threads
        may run on; with `strict_cpu` each thread is bound to one of them, in turn. `prio` is "low",
        "normal", "medium", "high" or "realtime". `poll` is how long threads spin for work before
        they sleep, from 0 (not at all) to 100. A `paused` pool sleeps until `resume` or the first
        compute. `device` is the CPU device whose backends will use the pool.

        Raises `ArgumentError` for numbers out of range, CPUs that this process may not use or a
        priority that it may not have, `MissingFunctionError` for a device without thread pools.
        """
        self.n_threads = integer("n_threads", n_threads, 1, lib.GGML_MAX_N_THREADS)
        self.poll = integer("poll", poll, 0, 100)
        self.prio = enums.SchedPriority(enum_of(enums.SchedPriority, prio))
        self.strict_cpu = bool(strict_cpu)
        self.cpumask = None if cpumask is None else _cpus(cpumask)
        # Whether its threads have their own CPUs or priority.
        self.is_placed = self.cpumask is not None or self.prio in _POLICIES
        self.device = _cpu() if device is None else device
        if not isinstance(self.device, Device):
            raise TypeError(f"device: expected a Device or None, got {describe(self.device)}")
        held = self.device.ptr  # noqa: F841  no unload before the module knows this pool
        new, free = self._functions()
        params = ffi.new("struct ggml_threadpool_params *")
        lib.ggml_threadpool_params_init(params, self.n_threads)
        params.prio, params.poll = self.prio, self.poll
        params.strict_cpu, params.paused = self.strict_cpu, bool(paused)
        for cpu in self.cpumask or ():
            params.cpumask[cpu] = True

        def make() -> Any:
            self._try_placement()
            return new(params)

        self._backends: weakref.WeakSet[Backend] = weakref.WeakSet()
        super().__init__(_on_a_thread(make), free)
        self.device._module.open.add(self)
        self._bound_to_process()

    def __repr__(self) -> str:
        n = self.n_threads
        return f"<ThreadPool {'closed' if self.closed else f'{n} thread' + 's' * (n != 1)}>"

    def pause(self) -> None:
        """Makes the threads sleep until `resume` or the next compute, whatever `poll` is.

        Raises `BusyError` while it computes, `MissingFunctionError` if the CPU backend is a
        loaded module. C: ggml_threadpool_pause
        """
        self._check_linked("ggml_threadpool_pause")
        with in_use("being paused", self):
            lib.ggml_threadpool_pause(self.ptr)

    def resume(self) -> None:
        """Wakes the threads ahead of the next compute. Raises `MissingFunctionError` as `pause`
        does. C: ggml_threadpool_resume
        """
        self._check_linked("ggml_threadpool_resume")
        lib.ggml_threadpool_resume(self.ptr)

    def _before_loss(self) -> None:
        self._before_free()

    def _before_free(self) -> None:
        for backend in those_of(self._backends):
            backend.set_threadpool(None)

    def _functions(self) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
        """The functions that make and free a pool; guarded ones if the backend is linked."""
        new = self.device.proc_address("ggml_threadpool_new")
        free = self.device.proc_address("ggml_threadpool_free")
        if _linked(self.device):
            return lib.ggml_threadpool_new, lib.ggml_threadpool_free
        return (
            ffi.cast("struct ggml_threadpool * (*)(struct ggml_threadpool_params *)", new),
            ffi.cast("void (*)(struct ggml_threadpool *)", free),
        )

    def _check_linked(self, function: str) -> None:
        if not _linked(self.device):
            raise MissingFunctionError(
                f"{function}: the backend of {self.device.name} is a loaded module, which does not "
                "export this function. Builds that link the backend (not --portable) have it"
            )

    def _place_worker_0(self) -> None:
        if self.cpumask is not None:
            cpus = sorted(self.cpumask)  # upstream places worker 0 last
            mine = {cpus[(self.n_threads - 1) % len(cpus)]} if self.strict_cpu else cpus
            os.sched_setaffinity(0, mine)
        if self.prio in _POLICIES:
            policy, level = _POLICIES[self.prio]
            os.sched_setscheduler(0, getattr(os, policy), os.sched_param(level))

    def _try_placement(self) -> None:
        """Tries the CPUs and the priority on this thread, which ends soon. Upstream would only
        print that it did not get them."""
        if self.cpumask is not None and hasattr(os, "sched_setaffinity"):
            with contextlib.suppress(OSError):  # it may use none of them
                os.sched_setaffinity(0, self.cpumask)
            wrong = sorted(self.cpumask - os.sched_getaffinity(0))
            if wrong:
                raise ArgumentError(f"cpumask: this process may not use CPU {wrong[0]}")
        if self.prio in _POLICIES and hasattr(os, "sched_setscheduler"):
            policy, level = _POLICIES[self.prio]
            try:
                os.sched_setscheduler(0, getattr(os, policy), os.sched_param(level))
            except OSError as error:
                raise ArgumentError(
                    f"prio={self.prio.name.lower()}: the system does not grant {policy} {level} to "
                    f"this process ({error.strerror}); root can, or `ulimit -r {level}`"
                ) from None


@contextlib.contextmanager
def as_worker_0(pools: Iterable[ThreadPool]) -> Iterator[None]:
    """Gives this thread the CPUs and priority of the pools' worker 0 while it computes."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    affinity = os.sched_getaffinity(0)
    policy = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        for pool in pools:
            pool._place_worker_0()
        yield
    finally:
        os.sched_setaffinity(0, affinity)
        os.sched_setscheduler(0, *policy)


def _cpus(cpumask: Iterable[int]) -> frozenset[int]:
    most = lib.GGML_MAX_N_THREADS - 1
    cpus = frozenset(integer("cpumask", cpu, 0, most) for cpu in cpumask)
    if not cpus:
        raise ArgumentError("cpumask has no CPU: expected at least one, or None for all")
    return cpus


def _cpu() -> Device:
    return device("CPU")  # ThreadPool has a parameter named `device`


def _linked(device: Device) -> bool:
    try:
        return bool(lib.ggml_backend_cpu_reg() == lib.ggml_backend_dev_backend_reg(device.ptr))
    except MissingFunctionError:
        return False


def _on_a_thread(make: Callable[[], T]) -> T:
    """Calls `make()` on a thread of its own, and raises what that raises."""
    made: list[T] = []
    raised: list[BaseException] = []

    def run() -> None:
        try:
            made.append(make())
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if raised:
        raise raised[0]
    return made[0]
