"""Makes the instrumented copies of upstream's sources.

Upstream's tree stays byte for byte. The copies differ by the edits of `EDITS`, each anchored on
text that has not changed from release 0.9.4 to 0.26.0. What they call is in ``ggml_py/native``:
``sched_hooks.h`` for the scheduler.
"""

from __future__ import annotations

from dataclasses import dataclass


class AnchorError(Exception):
    """An anchor was not found exactly once: this release needs its edits looked at."""


@dataclass(frozen=True)
class Edit:
    """One change: `text` goes before `anchor`, which is found exactly once.

    With `replace` it takes the anchor's place; with `until`, found exactly once too, the place of
    everything from the one to the end of the other.
    """

    name: str
    anchor: str
    text: str
    replace: bool = False
    until: str = ""


def _stage(name: str, anchor: str, code: int) -> Edit:
    return Edit(name, f"    // {anchor}", f"    GP_STAGE(sched, graph, {code});\n")


_SCHEDULER = (
    Edit(
        "disabled SET_CAUSE block",
        "#if 0\n#define GGML_SCHED_MAX_SPLITS_DEBUG 4096\n",
        '#include "sched_trace.cpp"\n',
        until='#define SET_CAUSE(node, ...)\n#define GET_CAUSE(node) ""\n#endif\n',
    ),
    # The struct is private to this file and made by calloc, so a first member changes no ABI.
    Edit(
        "scheduler struct",
        "struct ggml_backend_sched {\n",
        "namespace gp { struct trace; }\n\nstruct ggml_backend_sched {\n    gp::trace * trace;\n\n",
        replace=True,
    ),
    Edit("start of split_graph", "    // pass 1: assign", "    GP_SPLIT_BEGIN(sched, graph);\n"),
    _stage("pass 2", "pass 2:", 20),
    _stage("sweep gpu down", "expand gpu down\n", 21),
    _stage("sweep gpu up", "expand gpu up\n", 22),
    _stage("sweep rest down", "expand rest down\n", 23),
    _stage("sweep rest up", "expand rest up\n", 24),
    _stage("pass 3", "pass 3: upgrade", 30),
    _stage("pass 4", "pass 4: assign", 40),
    _stage("pass 5", "pass 5: split", 50),
    Edit(
        "source replaced by a copy",
        20 * " " + "node->src[j] = tensor_id_copy(src_id, cur_backend_id, sched->cur_copy);\n",
        20 * " " + "GP_REWIRE(sched, node, j);\n",
    ),
    Edit(
        "hash set cleared",
        "        ggml_hash_set_reset(&sched->hash_set);\n",
        "        GP_RESET(sched);\n",
    ),
    Edit(
        "scheduler freed",
        "    ggml_hash_set_free(&sched->hash_set);\n",
        "    GP_FREE(sched);\n",
    ),
)

# By path below upstream's src/. native/CMakeLists.txt puts each copy where the original was.
EDITS: dict[str, tuple[Edit, ...]] = {
    "ggml-backend.cpp": _SCHEDULER,
}


def _find_once(source: str, text: str, name: str, anchor: str) -> int:
    count = text.count(anchor)
    if count != 1:
        raise AnchorError(
            f"anchor '{name}' was found {count} times in {source}, expected exactly once "
            f"(it reads {anchor.strip()!r}). This release changed there: mend "
            "vendor/instrument.py, or build with --pristine to do without tracing."
        )
    return text.index(anchor)


def instrument(source: str, text: str) -> str:
    """Returns the instrumented copy of `text`, which is upstream's file `source` (of `EDITS`).

    Raises `AnchorError`, naming the anchor, when one is not found exactly once.
    """
    for edit in EDITS[source]:
        start = end = _find_once(source, text, edit.name, edit.anchor)
        if edit.until:
            end = _find_once(source, text, f"end of {edit.name}", edit.until) + len(edit.until)
        elif edit.replace:
            end = start + len(edit.anchor)
        text = text[:start] + edit.text + text[end:]
    return text
