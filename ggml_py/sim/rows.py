"""The results of upstream's op tests on a device: rows of docs/ops/*.csv, or of a user's file.

The build puts the rows of its release into `profiles.zip` (vendor/profiles.py). A user's file is
the output of `test-backend-ops support --output csv`.
"""

from __future__ import annotations

import csv
import functools
import io
import json
import re
import zipfile
from pathlib import Path
from typing import Any

from .. import builds as _builds
from ..errors import ArgumentError, NotBuiltError, UnknownDeviceError
from ..files.reading import read_file
from .profiles.params import Row, Value

FILE = "profiles.zip"
_COLUMNS = ("op_name", "op_params", "supported")
_BETWEEN = re.compile(r",(?=[A-Za-z_])")  # not inside [1,2,3,4]

Answers = list[tuple[str, bool]]  # parameters as upstream writes them, supported


def _value(text: str) -> Value:
    if text.startswith("["):
        return tuple(int(number) for number in text[1:-1].split(","))
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    return text.lower()


@functools.cache
def _param(text: str) -> tuple[str, Value]:
    name, equals, value = text.partition("=")
    return name, _value(value) if equals else 1


def parsed(params: str) -> Row:
    """A row's parameters: "type=f32,ne=[4,1,1,1],split" → numbers, tuples, lower-case words."""
    return dict(map(_param, _BETWEEN.split(params)))


class DeviceRecord:
    """The rows of one device, by op. `title` says where they come from; `age` is the first of the
    releases that we know with these very rows, "" if none has them."""

    def __init__(self, name: str, title: str, age: str = "") -> None:
        self.name = name
        self.title = title
        self.age = age

    def ops(self) -> frozenset[str]:
        """The ops that have rows."""
        raise NotImplementedError

    def answers(self, op: str) -> Answers:
        """The rows of an op, in upstream's order; none for an unknown one."""
        raise NotImplementedError


class BuiltRecord(DeviceRecord):
    """Rows from the build's `profiles.zip`. The rows of an op are read when they are needed."""

    def __init__(self, path: Path, name: str, index: dict[str, Any], release: str) -> None:
        age = index.get("ages", {}).get(name, "")
        title = f"upstream's record of {name} in ggml {release}"
        super().__init__(name, f"{title}, unchanged since {age}" if age else title, age)
        self._path = path
        self._letter = list(index["profiles"]).index(name)
        self._ops = frozenset(index["profiles"][name])

    def ops(self) -> frozenset[str]:
        return self._ops

    def answers(self, op: str) -> Answers:
        if op not in self._ops:
            return []
        with zipfile.ZipFile(self._path) as archive:
            lines = archive.read(op).decode("utf-8").splitlines()
        found = []
        for line in lines:
            params, _, letters = line.partition("\t")
            if letters[self._letter] != "-":
                found.append((params, letters[self._letter] == "y"))
        return found


class FileRecord(DeviceRecord):
    """Rows from a user's CSV file."""

    def __init__(self, path: Path) -> None:
        super().__init__(path.stem, str(path))
        self._answers: dict[str, dict[str, bool]] = {}
        try:
            with io.StringIO(read_file(path).decode("utf-8"), newline="") as file:
                table = csv.DictReader(file)
                missing = [one for one in _COLUMNS if one not in (table.fieldnames or ())]
                if missing:
                    raise ArgumentError(
                        f"{path} has no column {', '.join(missing)}: expected the output of "
                        "`test-backend-ops support --output csv`"
                    )
                for row in table:
                    if row["supported"] is None:
                        continue  # a message of the program between the rows
                    mine = self._answers.setdefault(row["op_name"], {})
                    before = mine.get(row["op_params"], True)
                    mine[row["op_params"]] = before and row["supported"] in ("1", "yes", "true")
        except ArgumentError:
            raise
        except (OSError, ValueError, csv.Error) as error:
            raise ArgumentError(f"{path} cannot be read as CSV: {error}") from error
        if not self._answers:
            raise ArgumentError(
                f"{path} has no rows: expected the output of "
                "`test-backend-ops support --output csv`"
            )

    def ops(self) -> frozenset[str]:
        return frozenset(self._answers)

    def answers(self, op: str) -> Answers:
        return list(self._answers.get(op, {}).items())


def _archive() -> tuple[Path, dict[str, Any], str]:
    """The build's file, its index (the ops and the age of each profile), and the release's name."""
    build = _builds.current()
    path = Path(build["folder"]) / FILE
    if not path.is_file():
        raise NotBuiltError(
            f"build {build['key']} has no device profiles (its source has no docs/ops, or it was "
            "made by an older ggml_py): build a release with `ggml-py build`, or pass the path of "
            "a file made by `test-backend-ops support --output csv`"
        )
    with zipfile.ZipFile(path) as archive:
        index = json.loads(archive.read("index.json"))
    return path, index, str(build["label"])


def names() -> tuple[str, ...]:
    """The profiles of this build. Raises `NotBuiltError` if it has none."""
    return tuple(_archive()[1]["profiles"])


def record_of(name: str) -> DeviceRecord:
    """The record of a profile of this build, or of a CSV file.

    Raises `UnknownDeviceError` with the known names, `ArgumentError` for a file without a record.
    """
    if name.lower().endswith(".csv") or "/" in name:
        return FileRecord(Path(name))
    path, index, release = _archive()
    if name.lower() not in index["profiles"]:
        known = ", ".join(index["profiles"])
        raise UnknownDeviceError(
            f"no device profile {name!r}: expected one of {known}, or the path of a "
            "CSV file made by `test-backend-ops support --output csv`"
        )
    return BuiltRecord(path, name.lower(), index, release)
