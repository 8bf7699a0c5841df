"""``ggml-py devices``"""

from __future__ import annotations

from typing import Any

import click

from .options import as_json, echo_json


@click.command("devices")
@as_json
def command(as_json: bool) -> None:
    """List the devices that this build can compute on."""
    from .._device import devices
    from .._ffi import BUILD
    from ..trace.plan import format_bytes

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
    if as_json:
        echo_json({"build": BUILD["key"], "ggml_version": BUILD["ggml_version"], "devices": rows})
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("name", "type", "description", "backend", "memory free / total")
    for row in rows:
        free, total = row["memory_free"], row["memory_total"]
        memory = f"{format_bytes(free)} / {format_bytes(total)}" if total else "shares the host's"
        table.add_row(row["name"], row["type"], row["description"], row["backend"], memory)
    console = Console()
    console.print(table)
    console.print(f"ggml {BUILD['ggml_version']}, build {BUILD['key']}", highlight=False)
