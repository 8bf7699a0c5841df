"""Assertions about plans, and strict blocks."""

import ggml_py as ggml
from ggml_py import checks

from ..misuses import misuse


def _plan(e):
    return e.scheduler.plan(e.graph)


def _strict(**options):
    with ggml.strict(**options):
        pass


MISUSES = [
    misuse("fallback-graph", lambda e: checks.assert_no_fallback(e.graph), TypeError, "Graph",
           "expected a Plan"),
    misuse("fallback-backend", lambda e: checks.assert_no_fallback(_plan(e), backend="gpu9"),
           KeyError, "no backend 'gpu9'", "it has CPU"),
    misuse("fallback-no-device", lambda e: checks.assert_no_fallback(_plan(e), op="RELU"),
           ValueError, "only CPU", "say which of them"),
    misuse("fallback-cpu", lambda e: checks.assert_no_fallback(_plan(e), backend="CPU"),
           ValueError, "backend='CPU'", "op="),
    misuse("fallback-op", lambda e: checks.assert_no_fallback(_plan(e), op=[1], backend="CPU"),
           TypeError, "op: expected names", "list"),
    misuse("splits-none", lambda e: checks.assert_max_splits(_plan(e), None), TypeError,
           "max_splits", "expected a whole number, got NoneType"),
    misuse("splits-negative", lambda e: checks.assert_max_splits(_plan(e), -1),
           ggml.ArgumentError, "max_splits=-1", "at least 0"),
    misuse("copy-bytes-text", lambda e: checks.assert_max_copy_bytes(_plan(e), "1M"), TypeError,
           "max_copy_bytes", "got str '1M'"),
    misuse("pins-empty", lambda e: checks.assert_pins(_plan(e), {}), ValueError, "backends={}",
           "expected names"),
    misuse("pins-list", lambda e: checks.assert_pins(_plan(e), ["y"]), TypeError, "list",
           "expected a mapping"),
    misuse("pins-name", lambda e: checks.assert_pins(_plan(e), {"yy": "CPU"}), KeyError, "'yy'",
           "no node named"),
    misuse("same-path", lambda e: checks.assert_same_plan(_plan(e), "plan.json"), TypeError,
           "str 'plan.json'", "expected a Plan"),
    misuse("supported-plan", lambda e: checks.assert_supported(_plan(e), e.cpu), TypeError,
           "Plan", "expected a Graph"),
    misuse("supported-name", lambda e: checks.assert_supported(e.graph, "CPU"), TypeError,
           "str 'CPU'", "expected a Device or a Backend"),
    misuse("strict-backend", lambda e: _strict(no_fallback="CPU"), TypeError, "str 'CPU'",
           "True or False", at=_strict),
    misuse("strict-splits", lambda e: _strict(max_splits=1.5), TypeError, "max_splits",
           "float 1.5", at=_strict),
    misuse("strict-allow", lambda e: _strict(max_splits=3, allow="x"), ggml.ArgumentError,
           "allow='x'", "no_fallback=True", at=_strict),
    misuse("strict-allow-number", lambda e: _strict(no_fallback=True, allow=[3]), TypeError,
           "allow: expected names", "list", at=_strict),
    misuse("page", lambda e: ggml.Plan.from_snapshot("x"), ValueError, "got 'x'",
           "expected 'ggml_py plan snapshot 2'"),
]  # fmt: skip
