"""The output of `bench`: llama-bench's keys, table and other formats."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import click

Row = Mapping[str, Any]  # llama-bench's keys, in its order


def times(samples_ns: Sequence[int], n_tokens: int) -> dict[str, Any]:
    """avg_ns, stddev_ns, avg_ts, stddev_ts and both lists of samples; _ts are tokens per second."""
    samples_ts = [1e9 * n_tokens / ns for ns in samples_ns]
    n = len(samples_ns)
    avg_ns, avg_ts = sum(samples_ns) // max(n, 1), sum(samples_ts) / max(n, 1)
    stddev_ns, stddev_ts = 0, 0.0
    if n > 1:  # as in llama-bench, quotients of whole numbers are whole numbers
        squares = sum(ns * ns for ns in samples_ns) // (n - 1)
        stddev_ns = math.isqrt(max(squares - avg_ns * avg_ns * n // (n - 1), 0))
        squares_ts = sum(ts * ts for ts in samples_ts) / (n - 1)
        stddev_ts = math.sqrt(max(squares_ts - avg_ts * avg_ts * n / (n - 1), 0.0))
    return {
        "avg_ns": avg_ns, "stddev_ns": stddev_ns, "avg_ts": avg_ts, "stddev_ts": stddev_ts,
        "samples_ns": list(samples_ns), "samples_ts": samples_ts,
    }  # fmt: skip


def test_name(n_prompt: int, n_gen: int, n_depth: int) -> str:
    """llama-bench's name of a test: "pp512", "tg128 @ d4096", "pp512+tg128"."""
    if n_prompt and not n_gen:
        name = f"pp{n_prompt}"
    elif n_gen and not n_prompt:
        name = f"tg{n_gen}"
    else:
        name = f"pp{n_prompt}+tg{n_gen}"
    return name + (f" @ d{n_depth}" if n_depth else "")


def _text(value: Any) -> str:
    """A value as llama-bench writes it: with std::to_string for numbers and flags."""
    if isinstance(value, bool):
        return str(int(value))
    return f"{value:.6f}" if isinstance(value, float) else str(value)


def _json(value: Any) -> str:
    if isinstance(value, list):
        return f"[ {', '.join(f'{v:g}' if isinstance(v, float) else str(v) for v in value)} ]"
    return _text(value) if isinstance(value, float) else json.dumps(value, ensure_ascii=False)


class Printer:
    """Writes rows one by one, as they come. Each format has its own class."""

    def __init__(self, fields: Sequence[str], columns: Sequence[str], err: bool = False) -> None:
        """`fields` are the keys of all rows, `columns` the optional ones that a table shows. `err`
        writes to standard error."""
        self.fields, self.columns, self._err = fields, columns, err

    def header(self) -> None:
        """Writes whatever comes before the first row."""

    def row(self, row: Row) -> None:
        """Writes one result."""
        raise NotImplementedError

    def footer(self) -> None:
        """Writes whatever comes after the last row."""

    def say(self, text: str, end: bool = True) -> None:
        """Writes `text` immediately, so that it can be watched."""
        click.echo(text, err=self._err, nl=end)


class Csv(Printer):
    """CSV with all values in quotation marks."""

    def header(self) -> None:
        """Writes the keys."""
        self.say(",".join(self.fields))

    def row(self, row: Row) -> None:
        """Writes the values."""
        self.say(",".join('"' + _text(row[f]).replace('"', '""') + '"' for f in self.fields))


class Json(Printer):
    """A JSON list of objects."""

    _first = True

    def header(self) -> None:
        """Begins the list."""
        self.say("[")

    def row(self, row: Row) -> None:
        """Writes an object, with a line for each key."""
        lines = ",\n".join(f"    {json.dumps(key)}: {_json(row[key])}" for key in row)
        self.say(("" if self._first else ",\n") + f"  {{\n{lines}\n  }}", end=False)
        self._first = False

    def footer(self) -> None:
        """Ends the list."""
        self.say("\n]")


class Jsonl(Printer):
    """A JSON object per line."""

    def row(self, row: Row) -> None:
        """Writes one object."""
        self.say("{" + ", ".join(f"{json.dumps(key)}: {_json(row[key])}" for key in row) + "}")


class Sql(Printer):
    """SQL that sqlite3 reads into a table."""

    def header(self) -> None:
        """Creates the table if it does not exist."""
        columns = ",\n".join(f"  {field} {_sql_type(field)}" for field in self.fields)
        self.say(f"CREATE TABLE IF NOT EXISTS llama_bench (\n{columns}\n);\n")

    def row(self, row: Row) -> None:
        """Adds a row to the table."""
        values = ", ".join("'" + _text(row[f]).replace("'", "''") + "'" for f in self.fields)
        self.say(f"INSERT INTO llama_bench ({', '.join(self.fields)}) VALUES ({values});")


_TEXTS: Final = {
    "build_commit", "cpu_info", "gpu_info", "backends", "model_filename", "model_type", "cpu_mask",
    "type_k", "type_v", "split_mode", "devices", "tensor_split", "tensor_buft_overrides",
    "load_mode", "lazy_mode", "test_time",
}  # fmt: skip


def _sql_type(field: str) -> str:
    if field in _TEXTS:
        return "TEXT"
    return "REAL" if field in ("avg_ts", "stddev_ts") else "INTEGER"


# Headings that differ from the key; widths that are not the larger of 10 and the key's length.
_HEADINGS: Final = {
    "n_gpu_layers": "ngl", "split_mode": "sm", "n_threads": "threads", "no_kv_offload": "nkvo",
    "flash_attn": "fa", "load_mode": "lm", "embeddings": "embd", "no_op_offload": "nopo",
    "no_host": "noh", "repack": "rpk", "devices": "dev", "tensor_split": "ts",
    "tensor_buft_overrides": "ot",
}  # fmt: skip
_WIDTHS: Final = {
    "model": 30, "size": 10, "params": 10, "n_gpu_layers": 3, "n_threads": 7, "n_batch": 7,
    "n_ubatch": 8, "type_k": 6, "type_v": 6, "split_mode": 6, "load_mode": 10, "flash_attn": 3,
    "devices": 12, "test": 15, "t/s": 20, "no_op_offload": 4, "no_host": 4, "repack": 3,
}  # fmt: skip
_LEFT: Final = ({"model", "backend"} | _TEXTS) - {"type_k", "type_v", "split_mode", "load_mode"}


class Markdown(Printer):
    """A Markdown table, as llama-bench prints it."""

    def header(self) -> None:
        """Writes the headings."""
        self._fields = ("model", "size", "params", "backend", *self.columns, "test", "t/s")
        self.say(_line({field: _HEADINGS.get(field, field) for field in self._fields}))
        rules = ("-" * (_width(f) - 1) + ("-" if f in _LEFT else ":") for f in self._fields)
        self.say(f"| {' | '.join(rules)} |")

    def row(self, row: Row) -> None:
        """Writes one line."""
        size, n = row["model_size"] / 2**20, row["model_n_params"]
        shown = {
            "model": row["model_type"],
            "size": f"{size:.2f} MiB" if size < 1024 else f"{size / 1024:.2f} GiB",
            "params": f"{n / 1e6:.2f} M" if n < 1e9 else f"{n / 1e9:.2f} B",
            "backend": row["backends"],
            "test": test_name(row["n_prompt"], row["n_gen"], row["n_depth"]),
            "t/s": f"{row['avg_ts']:.2f} ± {row['stddev_ts']:.2f}",
        }
        self._build = row["build_commit"], row["build_number"]
        self.say(_line({f: shown[f] if f in shown else _text(row[f]) for f in self._fields}))

    def footer(self) -> None:
        """Writes the build."""
        if hasattr(self, "_build"):
            self.say("\nbuild: {} ({})".format(*self._build))


def _width(field: str) -> int:
    return _WIDTHS.get(field) or max(len(field), 10)


def _line(texts: Mapping[str, str]) -> str:
    aligned = (
        text.ljust(_width(f)) if f in _LEFT else text.rjust(_width(f)) for f, text in texts.items()
    )
    return f"| {' | '.join(aligned)} |"


PRINTERS: Final[dict[str, type[Printer]]] = {
    "csv": Csv, "json": Json, "jsonl": Jsonl, "md": Markdown, "sql": Sql,
}  # fmt: skip
