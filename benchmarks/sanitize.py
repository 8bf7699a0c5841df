"""Runs tests on a build with the compiler's sanitizers and lists the reports.

    python benchmarks/sanitize.py [--sanitize address,undefined] [pytest's arguments ...]
    python benchmarks/sanitize.py --search metamorphic --cases 100000

The second form runs a search (search.py) and keeps no record. In a search, reports of `undefined`
are seen only if it is used alone: together with `address` they are lost. The build is made if it is
missing (two minutes). Each place is listed once, with the number of its reports, and places in our
code are marked. The exit status is 1 if a report is in our code or is a memory error, or if a test
failed. benchmarks/SANITIZERS.md lists the known reports in upstream's code.
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
# The first two limit the address space, of which the runtime of `address` reserves 20 TB. The last
# compares with optimised programs of upstream's, which round differently.
LIMITED = (
    "test_isolate.py",
    "test_gguf_mutants.py::test_the_fuzzer_notices",
    "test_models.py",
)
SUPPRESSED = ROOT / "benchmarks" / "tsan.supp"
NUMBERS = re.compile(r"0x[0-9a-f]+|-?\d[\d.e+]*")


def reports(texts: Iterator[str]) -> Iterator[tuple[str, str]]:
    """Every report in these logs: its place in our or upstream's sources, and its kind."""
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
            yield "no frame in our or upstream's code", pending


def is_grave(place: str, what: str) -> bool:
    """Whether a report is in our code, or a memory error anywhere. Other undefined behaviour in
    upstream's code is not grave."""
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
    """The environment in which Python can load the build. Reports go to files in `logs`."""
    first = []
    for name, library in (("address", "libasan.so"), ("thread", "libtsan.so")):
        if name in sanitize:
            first.append(_file(library))
    if first:
        first.append(_file("libstdc++.so"))  # otherwise the runtime does not find __cxa_throw
    common = f"halt_on_error=0:log_path={logs}/report"
    return {
        **os.environ,
        "LD_PRELOAD": " ".join(first),
        # Python frees few of its one-time objects, so leaks are not detected.
        "ASAN_OPTIONS": f"detect_leaks=0:allocator_may_return_null=1:{common}",
        "UBSAN_OPTIONS": f"print_stacktrace=1:{common}",
        # We throw an exception out of a fault's signal handler. The runtime then believes that the
        # handler is still running, and a second fault ends the process.
        "TSAN_OPTIONS": f"report_signal_unsafe=0:history_size=5:suppressions={suppressed}:{common}",
        "PYTHONMALLOC": "malloc",  # so that cffi's memory is checked too
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
    parser.add_argument("--cases", type=int, default=4000, help="number of cases of the search")
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
        command += ["--limit", "120"]  # for code that takes many times as long
        return _reported(given, build, command)
    tests = given.tests or [str(ROOT / "tests")]
    others += [f"--deselect=tests/{test}" for test in LIMITED if "address" in given.sanitize]
    command = [sys.executable, "-m", "pytest", "-s", "-p", "no:cacheprovider", *tests, *others]
    return _reported(given, build, command)


def _reported(given: argparse.Namespace, build: str, command: list[str]) -> int:
    with tempfile.TemporaryDirectory() as logs:
        # Together with the runtime of `address`, that of `undefined` ignores log_path and writes to
        # stderr. So pytest must not capture. Output that tests capture from their own processes is
        # not seen.
        with (Path(logs) / "stderr").open("w") as stderr:
            # The suppressions concern users' threads; a case of that search has only one.
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
