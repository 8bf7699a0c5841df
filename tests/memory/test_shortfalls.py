"""What devices lack for a model: memory together, single buffers, and what is not known."""

from ggml_py.memory.shortfalls import (
    DeviceRoom,
    Shortfall,
    UncutBuffer,
    not_known,
    shortfalls,
    used,
)
from ggml_py.plan import MemoryRow

GIB = 1 << 30
ROWS = (
    MemoryRow("gpu0", "gpu0", 6 * GIB, GIB, GIB // 2),
    MemoryRow("CPU_Mapped", "CPU", 9 * GIB, 0, None),
    MemoryRow("CPU", "CPU", 0, 0, GIB // 4, GIB // 4),
)


def test_memory_together_with_a_reserve():
    rooms = [DeviceRoom("gpu0", 8 * GIB, 8 * GIB), DeviceRoom("CPU", GIB, GIB)]
    assert used(ROWS) == {"gpu0": 7 * GIB + GIB // 2, "CPU": GIB // 2}  # a mapped file takes none
    assert shortfalls(ROWS, (), rooms) == ()
    lacks = Shortfall("gpu0", "memory", 7 * GIB + GIB // 2, 7 * GIB, GIB)
    assert shortfalls(ROWS, (), rooms, {"gpu0": GIB}) == (lacks,)
    assert lacks.missing == GIB // 2 and lacks.to_dict()["missing"] == GIB // 2
    assert lacks.text.startswith("gpu0 lacks 536,870,912 bytes (512.0 MiB): 8,053,063,680 are ")
    assert lacks.text.endswith("7,516,192,768 are free, with 1.0 GiB kept free")
    assert [one.device for one in shortfalls(ROWS, (), rooms, GIB)] == ["gpu0", "CPU"]
    (full,) = shortfalls(ROWS, (), [DeviceRoom("gpu0", 0, 8 * GIB)])
    assert full.available == 0 and full.missing == used(ROWS)["gpu0"]
    unused = DeviceRoom("gpu1", 0, GIB)
    assert shortfalls(ROWS, (), [*rooms, unused], 0) == ()


def test_a_buffer_larger_than_the_largest():
    room = DeviceRoom("gpu0", 8 * GIB, 8 * GIB, max_buffer=GIB)
    at = UncutBuffer("gpu0", "gpu0", "compute", GIB, "kq-0", GIB)
    over = at._replace(nbytes=GIB + 1, tensor_nbytes=GIB + 1)
    assert shortfalls(ROWS, [at], [room]) == ()
    (found,) = shortfalls(ROWS, [over], [room])
    assert (found.kind, found.tensor, found.missing, found.sure) == ("compute", "kq-0", 1, True)
    assert found.text == (
        "'kq-0' (compute) needs 1,073,741,825 bytes, more than gpu0's largest buffer of "
        "1,073,741,824 bytes"
    )
    last = over._replace(tensor_nbytes=GIB // 2)  # the last of 16 has all that is left
    (found,) = shortfalls(ROWS, [last], [room])
    assert found.text.startswith("the last buffer for compute needs 1,073,741,825 bytes, more")
    may = room._replace(refuses=False)  # a device of Vulkan tries
    (found,) = shortfalls(ROWS, [over], [may])
    assert not found.sure and found.text.endswith("the device may allocate more for one tensor")
    small = may._replace(free=GIB)
    assert [one.sure for one in shortfalls(ROWS, [over], [small])] == [True, False]


def test_memory_that_is_not_known():
    rooms = [DeviceRoom("gpu0", None, None), DeviceRoom("CPU", GIB, GIB)]
    assert shortfalls(ROWS, (), rooms, GIB // 2) == ()
    assert not_known(ROWS, rooms) == ("gpu0",)
    assert not_known(ROWS, [DeviceRoom("gpu0", 1, 1), *rooms[1:]]) == ()


def test_an_integrated_gpu_has_no_memory_of_its_own():
    """Either fits alone; together they need more than the machine has."""
    gpu = DeviceRoom("gpu0", 8 * GIB, 8 * GIB, part_of="CPU")
    cpu = DeviceRoom("CPU", 8 * GIB, 8 * GIB)
    assert shortfalls(ROWS, (), [gpu, cpu]) == ()
    (found,) = shortfalls(ROWS, (), [gpu, cpu._replace(free=7 * GIB + GIB // 2)])
    assert (found.device, found.missing) == ("CPU", GIB // 2)
