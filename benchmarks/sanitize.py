"""Runs tests on a build with the compiler's sanitizers and lists what they found.

    python benchmarks/sanitize.py [--sanitize address,undefined] [pytest's arguments ...]
    python benchmarks/sanitize.py --search metamorphic --cases 100000

The second form runs a search (search.py) and keeps no record; there `undefined` alone says what it
finds, beside `address` it is not heard. Builds it when it is not there (two minutes). Each report
is counted once per place, ours apart from upstream's; the exit status is 1 when one is ours or a
memory error, or when a test failed. What is known of upstream's is in benchmarks/SANITIZERS.md.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# "file.c:12:3: runtime error: ..." (undefined) and "ERROR: AddressSanitizer: kind ..." (the rest)
UNDEFINED = re.compile(r"^(\S+?):(\d+):\d+: runtime error: (.*)$")
ERROR = re.compile(r"(?:ERROR|WARNING): \w+Sanitizer: (.*?)(?: on | \(pid|$)")
FRAME = re.compile(r"^\s+#\d+ 0x[0-9a-f]+ (?:in )?(.+?) (\S+?):(\d+)(?::\d+)?$")
# The first bound the address space, of which the runtime of `address` reserves 20 TB; the last
# compares with programs of upstream's that are optimised, so that they round otherwise.
LIMITED = (
    "test_isolate.py",
    "test_gguf_mutants.py::test_the_fuzzer_notices",
    "test_models.py",
)
SUPPRESSED = ROOT / "benchmarks" / "tsan.supp"
NUMBERS = re.compile(r"0x[0-9a-f]+|-?\d[\d.e+]*")


def reports(texts: Iterator[str]) -> Iterator[tuple[str, str]]:
    """Every report of these logs: its place in our sources or upstream's, and what it is."""
    for text in texts:
        pending = None
        for line in text.splitlines():
            if found := UNDEFINED.match(line):
                yield f"{_short(found[1])}:{found[2]}", NUMBERS.sub("N", found[3])
            elif found := ERROR.search(line):
                pending = found[1]
            elif pending and (found := FRAME.match(line)) and _sources(found[2]):
                yield f"{_short(found[2])}:{found[3]} ({found[1]})", pending
                pending = None
        if pending:
            yield "no frame of ours or upstream's", pending


def is_grave(place: str, what: str) -> bool:
    """Ours, or an error of memory, whosever it is; undefined behaviour of upstream's is not."""
    memory = re.match(r"[a-z]+(-[a-z]+)+$|SEGV|data race", what)
    return place.startswith("ours: ") or memory is not None


def _sources(path: str) -> bool:
    return "/ggml/" in path or "ggml_py" in path or "/instrumented/" in path


def _short(path: str) -> str:
    for mark in ("/ggml/src/", "/ggml_py/native/", "/generated/"):
        if mark in path:
            return path.split(mark)[-1] if mark == "/ggml/src/" else "ours: " + Path(path).name
    return Path(path).name


def environment(
    sanitize: str, build: str, logs: Path, suppressed: Path = SUPPRESSED
) -> dict[str, str]:
    """What a Python needs to load the build; reports go to files in `logs`."""
    first = []
    for name, library in (("address", "libasan.so"), ("thread", "libtsan.so")):
        if name in sanitize:
            first.append(_file(library))
    if first:
        first.append(_file("libstdc++.so"))  # else the runtime does not find __cxa_throw
    common = f"halt_on_error=0:log_path={logs}/report"
    return {
        **os.environ,
        "LD_PRELOAD": " ".join(first),
        # Python frees little of what it makes once; and the abort tests need their own signals.
        "ASAN_OPTIONS": f"detect_leaks=0:allocator_may_return_null=1:{common}",
        "UBSAN_OPTIONS": f"print_stacktrace=1:{common}",
        # Out of the handler of a fault an exception is thrown: the runtime believes that all which
        # comes after it is still the handler, and a second fault of the process ends it.
        "TSAN_OPTIONS": f"report_signal_unsafe=0:history_size=5:suppressions={suppressed}:{common}",
        "PYTHONMALLOC": "malloc",  # so that memory of cffi is looked after too
        "GGML_PY_UPSTREAM": build,
    }


def _file(library: str) -> str:
    compiler = os.environ.get("CC", "cc")
    done = subprocess.run(
        [compiler, f"-print-file-name={library}"], capture_output=True, text=True, check=True
    )
    return str(Path(done.stdout.strip()).resolve())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, add_help=True)
    parser.add_argument("--sanitize", default="address,undefined")
    parser.add_argument("--search", metavar="NAME", help="benchmarks/NAME.py instead of tests")
    parser.add_argument("--cases", type=int, default=4000, help="of the search")
    parser.add_argument("tests", nargs="*")
    given, others = parser.parse_known_args()
    built = subprocess.run(
        [sys.executable, str(ROOT / "build_ggml.py"), "--sanitize", given.sanitize],
        stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    build = Path(built.stdout.splitlines()[-1]).name
    if given.search:
        record = Path(tempfile.mkdtemp()) / "record.json"
        script = str(ROOT / "benchmarks" / f"{given.search}.py")
        command = [sys.executable, script, "--cases", str(given.cases), "--out", str(record)]
        return _reported(given, build, command)
    tests = given.tests or [str(ROOT / "tests")]
    others += [f"--deselect=tests/{test}" for test in LIMITED if "address" in given.sanitize]
    command = [sys.executable, "-m", "pytest", "-s", "-p", "no:cacheprovider", *tests, *others]
    return _reported(given, build, command)


def _reported(given: argparse.Namespace, build: str, command: list[str]) -> int:
    with tempfile.TemporaryDirectory() as logs:
        # Beside the runtime of `address`, that of `undefined` writes to stderr, despite log_path.
        # So pytest may not capture; what tests capture of processes of their own is not seen.
        with (Path(logs) / "stderr").open("w") as stderr:
            # The file is about threads of users; a case of that search has one.
            suppressed = Path(os.devnull) if given.search == "metamorphic" else SUPPRESSED
            env = environment(given.sanitize, build, Path(logs), suppressed)
            done = subprocess.run(command, env=env, stderr=stderr, check=False)
        texts = (path.read_text(errors="replace") for path in sorted(Path(logs).iterdir()))
        found = Counter(reports(texts))
    print(f"\n{len(found)} places reported by {given.sanitize} on {build}:")
    for (place, what), count in sorted(found.items()):
        print(f"  {place}: {what} ({count}×)")
    grave = any(is_grave(place, what) for place, what in found)
    return int(grave or done.returncode != 0)


if __name__ == "__main__":
    sys.exit(main())
