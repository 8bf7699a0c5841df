"""``ggml-py ops``"""

from __future__ import annotations

from pathlib import Path

import click

from .shared.bar import bar
from .shared.model_options import as_json, echo_json
from .shared.output import say
from .shared.source import Source, SourceType
from .shared.verb import Verb


@click.command(
    "ops", cls=Verb, short_help="Test which ops DEVICE supports, and whether they are right."
)
@click.argument("device")
@click.option(
    "--against", default="CPU", show_default=True, metavar="DEVICE",
    help="The device whose results count as right. Upstream's program compares with the CPU's "
    "reference kernels only; `ggml-py diverge` compares any two.",
)  # fmt: skip
@click.option(
    "--upstream", "releases", multiple=True, metavar="RELEASE",
    help="Another release that `ggml-py build --list` prints, or a checkout of llama.cpp. Give two "
    "to see what changed.",
)  # fmt: skip
@click.option(
    "--record",
    "records",
    multiple=True,
    type=SourceType("ops"),
    metavar="FILE",
    help="Test the ops of a record or a saved plan, instead of upstream's own cases.",
)
@click.option("-o", "--op", "ops", multiple=True, metavar="OP",
              help="Only these ops, by ggml's names; may be repeated.")  # fmt: skip
@click.option("--support", "support_only", is_flag=True, help="Compute nothing: list support only.")
@click.option("--no-build", is_flag=True, help="Refuse to build what is missing.")
@as_json
def command(
    device: str,
    against: str,
    releases: tuple[str, ...],
    records: tuple[Source, ...],
    ops: tuple[str, ...],
    support_only: bool,
    no_build: bool,
    as_json: bool,
) -> None:
    """Test every op of DEVICE with upstream's own program, `test-backend-ops`. It shows whether the
    device supports the op, and whether its results are within upstream's limits of the normalised
    mean squared error.

    The program and unmodified libraries for it are built first, once, in two minutes. It runs in
    its own process: an op that ends it is named, and the rest is still tested.

    Exit status: 0 if nothing is wrong, with two releases if nothing became wrong or unsupported; 1
    otherwise.

    \b
    ggml-py ops BLAS
    ggml-py ops CPU -o MUL_MAT -o FLASH_ATTN_EXT
    ggml-py ops CUDA0 --record llama-server.ggrec
    ggml-py ops CPU --upstream 0.25.3 --upstream 0.26.0 --json
    """
    from ..backends.device import device as find_device
    from ..builds import current, select
    from ..conformance import OpResults, OpResultsDiff, check_ops
    from ..conformance.program import op_program
    from ..releases.planned_cases import prepared

    if against != "CPU":
        raise click.UsageError(
            f"--against {against}: upstream's program compares with the CPU only; `ggml-py diverge "
            f"MODEL --between {against} {device}` compares any two devices in a model"
        )
    if len(releases) > 2:
        raise click.UsageError(f"{len(releases)} releases given: --upstream takes one or two")
    if not releases:
        find_device(device)  # before anything is built
    plans = [plan for file in records for _label, plan in file.plans()]
    keys = [prepared(release, not no_build) for release in releases]
    if len(keys) == 2 and keys[0] == keys[1]:
        raise click.UsageError(f"{releases[0]} and {releases[1]} are the same build: name two")
    programs = [op_program(current(), not no_build)] if not keys else [
        op_program(select(key), not no_build, release if Path(release).is_dir() else "")
        for key, release in zip(keys, releases, strict=True)
    ]  # fmt: skip
    found: list[OpResults] = []
    for program in programs:
        with bar(f"testing {device}, ggml {program.build['label']}", not as_json) as show:
            found.append(check_ops(
                device, program, ops=ops, plans=plans, source=", ".join(map(str, records)),
                support_only=support_only, progress=show,
            ))  # fmt: skip
    result = OpResultsDiff(*found) if len(found) == 2 else found[0]
    if as_json:
        echo_json(result.to_dict())
    else:
        say(str(result))
    wrong = bool(result) if isinstance(result, OpResultsDiff) else not result
    click.get_current_context().exit(int(wrong))
