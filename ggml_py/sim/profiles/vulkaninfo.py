"""Reads the properties of a Vulkan device out of what the program `vulkaninfo` prints.

They are those of ggml-vulkan's cards (native/cards/vulkan.cpp), by the same names.
"""

from __future__ import annotations

import re

from ...errors import ArgumentError

_ASSIGNED = re.compile(r"^\s*(\w+)\s*= (.*?)\s*$")
_LIST = re.compile(r"^(\s*)(\w+): count = (\d+)$")
_EXTENSION = re.compile(r"^\s+(VK_\w+)\s+: extension revision \d+$")
_MAINTENANCE4 = "VK_KHR_maintenance4"  # without it a device does not say its largest buffer
_OP_TESTS = re.compile(r"^Backend \d+/\d+: |^\s*[A-Z0-9_]+\(\w+=.*\): ", re.MULTILINE)
_DEVICE = re.compile(r"^GPU(\d+):$")

_TYPES = ("OTHER", "INTEGRATED_GPU", "DISCRETE_GPU", "VIRTUAL_GPU", "CPU")
# enum VkDriverId from 1 on
_DRIVERS = (
    "AMD_PROPRIETARY", "AMD_OPEN_SOURCE", "MESA_RADV", "NVIDIA_PROPRIETARY",
    "INTEL_PROPRIETARY_WINDOWS", "INTEL_OPEN_SOURCE_MESA", "IMAGINATION_PROPRIETARY",
    "QUALCOMM_PROPRIETARY", "ARM_PROPRIETARY", "GOOGLE_SWIFTSHADER", "GGP_PROPRIETARY",
    "BROADCOM_PROPRIETARY", "MESA_LLVMPIPE", "MOLTENVK", "COREAVI_PROPRIETARY",
    "JUICE_PROPRIETARY", "VERISILICON_PROPRIETARY", "MESA_TURNIP", "MESA_V3DV", "MESA_PANVK",
    "SAMSUNG_PROPRIETARY", "MESA_VENUS", "MESA_DOZEN", "MESA_NVK", "IMAGINATION_OPEN_SOURCE_MESA",
    "MESA_HONEYKRISP",
)  # fmt: skip
_STAGES = {"COMPUTE": 0x20, "FRAGMENT": 0x10}  # those that upstream looks at, and a neighbour
_OPERATIONS = ("BASIC", "VOTE", "ARITHMETIC", "BALLOT", "SHUFFLE", "SHUFFLE_RELATIVE",
               "CLUSTERED", "QUAD")  # fmt: skip


def read(text: str, device: int = 0) -> dict[str, str | int]:
    """The properties of the device with that number. `vulkaninfo` does not print the shapes of
    cooperative matrices, so a device with that extension needs `cooperativeMatrix` from elsewhere.

    Raises `ArgumentError` if `text` is not what `vulkaninfo` prints, or lacks the device.
    """
    lines = _of_device(text, device)
    values, lists = _fields(lines)
    if "maxComputeSharedMemorySize" not in values:
        if _OP_TESTS.search(text):
            raise ArgumentError(
                "this is the table of `test-backend-ops`: expected the output of "
                "`test-backend-ops support --output csv`, in a file that ends with .csv, or what "
                "`vulkaninfo` prints without options"
            )
        raise ArgumentError(
            f"no device {device} with its limits: expected what `vulkaninfo` prints without options"
        )
    found: dict[str, str | int] = {
        "name": values["deviceName"],
        "deviceType": _index(values, "deviceType", "PHYSICAL_DEVICE_TYPE_", _TYPES),
        "driverID": 1 + _index(values, "driverID", "DRIVER_ID_", _DRIVERS),
        "extensions": "+".join(m[1] for line in lines if (m := _EXTENSION.match(line))),
        "subgroupSupportedStages": _stages(lists["subgroupSupportedStages"]),
        "requiredSubgroupSizeStages": _stages(lists.get("requiredSubgroupSizeStages", [])),
        "subgroupSupportedOperations": sum(
            1 << i for i, name in enumerate(_OPERATIONS)
            if f"SUBGROUP_FEATURE_{name}_BIT" in lists["subgroupSupportedOperations"]
        ),
        "maxComputeWorkGroupCount": _number(lists["maxComputeWorkGroupCount"][0]),
        "memoryHeapSize": _local_memory(lines),
    }  # fmt: skip
    numbers = {name: _number(value) for name, value in values.items() if _is_number(value)}
    if _MAINTENANCE4 not in str(found["extensions"]).split("+"):
        # Upstream does not ask for the size then, and takes the limit of allocations.
        numbers["maxBufferSize"] = numbers["maxMemoryAllocationSize"]
    return {**numbers, **found}


def _of_device(text: str, device: int) -> list[str]:
    """The lines about a device: from its headline among the properties to that of the next one."""
    lines = text.expandtabs(4).splitlines()
    starts = [i for i, line in enumerate(lines) if _DEVICE.match(line)]
    mine = [i for i in starts if _DEVICE.match(lines[i])[1] == str(device)]  # type: ignore[index]
    if not mine:
        return []
    after = [i for i in starts if i > mine[-1]]
    return lines[mine[-1] : after[0] if after else len(lines)]


def _fields(lines: list[str]) -> tuple[dict[str, str], dict[str, list[str]]]:
    """What each name has: a value, and the lines of a list. The first of a name counts."""
    values: dict[str, str] = {}
    lists: dict[str, list[str]] = {}
    for i, line in enumerate(lines):
        if found := _LIST.match(line):
            rows = (row.strip() for row in lines[i + 1 : i + 1 + int(found[3])])
            lists.setdefault(found[2], list(rows))
        elif found := _ASSIGNED.match(line):
            values.setdefault(found[1], found[2])
    return values, lists


def _is_number(text: str) -> bool:
    return bool(re.match(r"(0x[0-9a-f]+|\d+)( \(.*)?$|true$|false$", text))


def _number(text: str) -> int:
    return {"true": 1, "false": 0}[text] if text in ("true", "false") else int(text.split()[0], 0)


def _index(values: dict[str, str], name: str, begin: str, known: tuple[str, ...]) -> int:
    text = values[name].removeprefix(begin)
    if text not in known:
        raise ArgumentError(f"{name} is {text[:80]!r}, expected one of {', '.join(known)}")
    return known.index(text)


def _stages(names: list[str]) -> int:
    return sum(bit for name, bit in _STAGES.items() if f"SHADER_STAGE_{name}_BIT" in names)


def _local_memory(lines: list[str]) -> int:
    """The bytes of the device's own heaps."""
    total = 0
    for i, line in enumerate(lines):
        if found := re.match(r"\s+size\s+= (\d+) ", line):
            flags = " ".join(lines[i + 1 : i + 6]).partition("memoryHeaps[")[0]
            total += int(found[1]) if "MEMORY_HEAP_DEVICE_LOCAL_BIT" in flags else 0
    return total
