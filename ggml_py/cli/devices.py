"""``ggml-py devices``"""

from __future__ import annotations

from typing import Any

import click

from .shared.model_options import as_json, echo_json
from .shared.this_machine import without_devices
from .shared.verb import Verb


@click.command("devices", cls=Verb)
@as_json
def command(as_json: bool) -> None:
    """List the devices that this build can compute on."""
    from ..backends.device import devices
    from ..boundary.ffi import BUILD
    from ..trace.planned import format_bytes

    rows: list[dict[str, Any]] = [
        {
            "name": d.name,
            "description": d.description,
            "type": d.type.name,
            "backend": d.registry,
            "memory_free": d.memory[0],
            "memory_total": d.memory[1],
            "buffer_type": d.buffer_type.name,
        }
        for d in devices()
    ]
    absent = without_devices()
    if as_json:
        version = BUILD["ggml_version"]
        echo_json(
            {"build": BUILD["key"], "ggml_version": version, "devices": rows, "absent": absent}
        )
        return
    from ..export.console import new_console, new_table, say

    table = new_table("name", "type", "description", "backend", ">memory free / total")
    for row in rows:
        free, total = row["memory_free"], row["memory_total"]
        memory = f"{format_bytes(free)} / {format_bytes(total)}" if total else "shares the host's"
        table.add_row(row["name"], row["type"], row["description"], row["backend"], memory)
    console = new_console()
    console.print(table)
    for name, reason in absent.items():
        say(f"{name}: {reason}", console=console)
    say(f"ggml {BUILD['ggml_version']}, build {BUILD['key']}", console=console)
