"""The nearest variant that a device supports."""

import dataclasses

import ggml_py as ggml

from ..misuses import misuse


def _plan(e):
    return e.scheduler.plan(e.graph)


def _foreign(e):
    """A node of a plan that names an op of another release."""
    plan = _plan(e)
    node = plan.node("y")
    node.record = node.record._replace(op="WARP_DRIVE")
    return node


def _pasted(e):
    """A node of a plan that came from a debug log."""
    plan = _plan(e)
    return dataclasses.replace(
        plan, capture=dataclasses.replace(plan.capture, source="debug log")
    ).node("y")


def _closed(e):
    context = e.later(ggml.Context())
    node = context.relu(context.new_tensor("f32", 4))
    context.close()
    return node


def _cpu():
    return ggml.device("CPU")


MISUSES = [
    misuse("leaf", lambda e: ggml.nearest(e.x, _cpu()), ggml.ArgumentError, "'x'",
           "expected a node"),
    misuse("name", lambda e: ggml.nearest("y", _cpu()), TypeError, "str 'y'",
           "expected a Tensor or a PlanTensor"),
    misuse("none", lambda e: ggml.nearest(None, _cpu()), TypeError, "NoneType",
           "expected a Tensor or a PlanTensor"),
    misuse("device-name", lambda e: ggml.nearest(e.y, "CPU"), TypeError, "str 'CPU'",
           "expected a Device or a Backend"),
    misuse("device-scheduler", lambda e: ggml.nearest(e.y, e.scheduler), TypeError, "Scheduler",
           "expected a Device or a Backend"),
    misuse("closed", lambda e: ggml.nearest(_closed(e), _cpu()), ggml.ClosedError, "Context",
           "closed"),
    misuse("plan-leaf", lambda e: ggml.nearest(_plan(e).node("w"), _cpu()), ggml.ArgumentError,
           "'w'", "expected a node"),
    misuse("plan-whole", lambda e: ggml.nearest(_plan(e), _cpu()), TypeError, "Plan",
           "expected a Tensor or a PlanTensor"),
    misuse("plan-foreign", lambda e: ggml.nearest(_foreign(e), _cpu()), ggml.ArgumentError,
           "WARP_DRIVE", "has no such op"),
    misuse("plan-pasted", lambda e: ggml.nearest(_pasted(e), _cpu()), ggml.ArgumentError,
           "debug log", "to_json"),
]  # fmt: skip
