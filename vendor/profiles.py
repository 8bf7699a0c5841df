"""Packs upstream's records of each backend's supported ops for `ggml_py.load_profile`.

Upstream keeps the output of `test-backend-ops support --output csv` for a dozen backends in
docs/ops/*.csv: 40 MB. Most rows are in several of these files. `profiles.zip` has one text for each
op, with a line per test case: its parameters and one letter per profile, y (supported), n (not
supported) or - (not tested).
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import tarfile
import zipfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path, PurePosixPath

from vendor import releases
from vendor.report import BuildError, step

FILE = "profiles.zip"
AGES = Path(__file__).with_name("record_ages.toml")   # made by record_ages.py
FOLDER = ("docs", "ops")
COLUMNS = ("op_name", "op_params", "supported")
Tables = dict[str, str]     # CSV texts by profile name


def tables_in_archive(archive: Path, subfolder: str) -> Tables:
    """The CSV files of a source distribution, read without unpacking it."""
    wanted = (*PurePosixPath(subfolder).parts, *FOLDER)
    found: Tables = {}
    with tarfile.open(archive) as tar:
        for member in tar:
            path = PurePosixPath(member.name)
            if path.suffix == ".csv" and path.parts[1:-1] == wanted:
                file = tar.extractfile(member)
                assert file is not None
                found[path.stem.lower()] = file.read().decode("utf-8")
    return found


def tables_in_folder(checkout: Path) -> Tables:
    """The CSV files of a checkout of llama.cpp. A checkout of ggml has none."""
    return {path.stem.lower(): path.read_text(encoding="utf-8")
            for path in sorted(checkout.joinpath(*FOLDER).glob("*.csv"))}


def known_by(table: str) -> str:
    """The hash that a record is known by."""
    return hashlib.sha256(table.encode()).hexdigest()[:16]


def age(table: str) -> str:
    """The label of the first release with this very record; "" if no release has it."""
    return _ages().get(known_by(table), "")


@cache
def _ages() -> dict[str, str]:
    return dict(releases.read_toml(AGES)["first"])


def _rows(name: str, table: str) -> Iterator[tuple[str, str, str]]:
    reader = csv.DictReader(io.StringIO(table))
    if missing := [column for column in COLUMNS if column not in (reader.fieldnames or ())]:
        raise BuildError(f"docs/ops/{name}.csv has no column {missing[0]}: upstream changed it")
    for row in reader:
        op, params, answer = (row[column] for column in COLUMNS)
        if answer is not None:      # some files have remarks from the program in between
            yield op, params, "y" if answer == "1" else "n"


def write(tables: Tables, target: Path) -> None:
    """Write profiles.zip, with the age of each record. The same tables give the same bytes."""
    names = sorted(tables)
    ops: dict[str, dict[str, list[str]]] = {}
    with step("reading what backends support"):
        for i, name in enumerate(names):
            for op, params, answer in _rows(name, tables[name]):
                letters = ops.setdefault(op, {}).setdefault(params, ["-"] * len(names))
                # If a table has a case twice with different answers, take it as not supported.
                letters[i] = "n" if letters[i] == "n" else answer
        with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
            index = {name: sorted(op for op, rows in ops.items() if _has(rows, i))
                     for i, name in enumerate(names)}
            ages = {name: age(tables[name]) for name in names}
            _put(archive, "index.json",
                 json.dumps({"schema": 1, "profiles": index, "ages": ages}))
            for op in sorted(ops):
                lines = (f"{params}\t{''.join(letters)}\n" for params, letters in ops[op].items())
                _put(archive, op, "".join(lines))


def _has(rows: dict[str, list[str]], profile: int) -> bool:
    return any(letters[profile] != "-" for letters in rows.values())


def _put(archive: zipfile.ZipFile, name: str, text: str) -> None:
    entry = zipfile.ZipInfo(name)       # has a constant time stamp
    entry.compress_type = zipfile.ZIP_DEFLATED
    archive.writestr(entry, text.encode("utf-8"))
