"""Makes the instrumented copy of upstream's ``ggml-backend.cpp``.

Upstream's tree stays byte for byte. The copy differs by the edits of `EDITS`, each anchored on text
that has not changed from release 0.9.4 to 0.26.0. What the edits call, ``native/sched_hooks.h``, is
included at the place of upstream's own disabled ``SET_CAUSE`` block.
"""

from __future__ import annotations

from dataclasses import dataclass


class AnchorError(Exception):
    """An anchor was not found exactly once: this release needs its edits looked at."""


@dataclass(frozen=True)
class Edit:
    """One change: `anchor` (found exactly once) becomes `text`, or `text` goes before it."""

    name: str
    anchor: str
    text: str
    replace: bool = False


_CAUSES_START = "#if 0\n#define GGML_SCHED_MAX_SPLITS_DEBUG 4096\n"
_CAUSES_END = '#define SET_CAUSE(node, ...)\n#define GET_CAUSE(node) ""\n#endif\n'


def _stage(name: str, anchor: str, code: int) -> Edit:
    return Edit(name, f"    // {anchor}", f"    GP_STAGE(sched, graph, {code});\n")


EDITS = (
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


def _find_once(text: str, name: str, anchor: str) -> int:
    count = text.count(anchor)
    if count != 1:
        raise AnchorError(
            f"anchor '{name}' was found {count} times in ggml-backend.cpp, expected exactly once "
            f"(it reads {anchor.strip()!r}). This release changed there: mend "
            "vendor/instrument.py, or build with --pristine to do without tracing."
        )
    return text.index(anchor)


def instrument(text: str) -> str:
    """Returns the instrumented copy of `text`, the source of ``ggml-backend.cpp``.

    Raises `AnchorError`, naming the anchor, when one is not found exactly once.
    """
    start = _find_once(text, "start of the disabled SET_CAUSE block", _CAUSES_START)
    end = _find_once(text, "end of the disabled SET_CAUSE block", _CAUSES_END)
    text = text[:start] + '#include "sched_trace.cpp"\n' + text[end + len(_CAUSES_END) :]
    for edit in EDITS:
        at = _find_once(text, edit.name, edit.anchor)
        rest = text[at + len(edit.anchor) :] if edit.replace else text[at:]
        text = text[:at] + edit.text + rest
    return text
