"""Puts what the page docs/open needs beside it when the site is built: a hook of mkdocs.yml.

Pyodide is the npm package that `make pyodide` installs. Our wheel and click's are made here, the
latter of the installed files, so that nothing is fetched."""

import functools
import http.server
import json
import shutil
import subprocess
import sys
import threading
import zipfile
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from types import MappingProxyType

REPO = Path(__file__).parents[2]
PYODIDE = REPO / "node_modules" / "pyodide"
FILES = ("pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm", "python_stdlib.zip",
         "pyodide-lock.json")  # fmt: skip
_WHEEL = (
    "import sys; from vendor import pep517; pep517.build_wheel(sys.argv[1], {'pure': 'true'})"
)


def on_post_build(config):
    """Completes the page in the site's folder; without Pyodide the page says what is missing."""
    if not PYODIDE.is_dir():
        print("site/open lacks Pyodide, so it opens no file: `make pyodide` first", file=sys.stderr)
        return
    complete(Path(config.site_dir) / "open")


def complete(folder):
    """Writes Pyodide, the wheels and the list of them into the page's folder."""
    (folder / "pyodide").mkdir(exist_ok=True)
    for name in FILES:
        shutil.copyfile(PYODIDE / name, folder / "pyodide" / name)
    subprocess.run([sys.executable, "-c", _WHEEL, folder], cwd=REPO, check=True)
    _repacked("click", folder)
    wheels = sorted(path.name for path in folder.glob("*.whl"))
    loaded = [*(folder / "pyodide" / name for name in FILES[1:]), *map(folder.joinpath, wheels)]
    told = {"wheels": wheels, "bytes": sum(path.stat().st_size for path in loaded)}
    (folder / "files.json").write_text(json.dumps(told))


def _repacked(name, folder):
    """The wheel of an installed package that is Python only."""
    found = metadata.distribution(name)
    target = folder / f"{name}-{found.version}-py3-none-any.whl"
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as wheel:
        for file in found.files or ():
            if ".." not in file.parts and file.suffix != ".pyc":
                wheel.write(file.locate(), str(file))


class _Quiet(http.server.SimpleHTTPRequestHandler):
    # As web servers have them; Python's own table depends on the system.
    extensions_map = MappingProxyType({
        ".html": "text/html", ".js": "text/javascript", ".mjs": "text/javascript",
        ".wasm": "application/wasm", ".json": "application/json", "": "application/octet-stream",
    })  # fmt: skip

    def log_message(self, *_args):
        pass


@contextmanager
def served(folder):
    """A server on this machine of the complete page, made in `folder`."""
    shutil.copytree(REPO / "docs" / "open", folder)
    complete(folder)
    handler = functools.partial(_Quiet, directory=folder)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()
