"""Writes docs/pictures: the page of a plan (tests/support/live_plan.py), and the page that opens
files, with a record.

    apt-get install chromium pngquant && make pyodide && python -m tests.house.doc_pictures
"""

import shutil
import subprocess
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

import ggml_py as ggml
from ggml_py.models import load
from ggml_py.models.synthetic import write_llama

from ..support import open_page
from ..support.live_plan import DEVICES, SPEC, planned

PICTURES = Path(__file__).parents[2] / "docs" / "pictures"

PICK = """
    const [, node] = page.plans[0].off[0].nodes;
    page.lanes.view(page.axis.start(0, node) - 10, 44);
    page.pick(0, node);
"""

# name, plans, light or dark, script to run before
SHOTS = (
    ("lanes", ("iq4_nl",), "light", PICK),
    ("passes", ("iq4_nl",), "dark", "page.setStage(2)"),
    ("diff", ("iq4_nl", "q8_0"), "light", "page.foldAll(true)"),
)


def main() -> None:
    """Plans, pages, pictures."""
    with tempfile.TemporaryDirectory() as scratch, sync_playwright() as playwright:
        folder = Path(scratch)
        plans = {kind: planned(kind) for kind in ("iq4_nl", "q8_0")}
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-lcd-text"]
        )
        PICTURES.mkdir(exist_ok=True)
        for name, kinds, scheme, before in SHOTS:
            plan, *other = (plans[kind] for kind in kinds)
            plan.export(folder / f"{name}.html", other=other[0] if other else None)
            page = browser.new_page(
                viewport={"width": 1440, "height": 860}, color_scheme=scheme
            )
            page.goto((folder / f"{name}.html").as_uri())
            page.evaluate(f"() => {{ {before} }}")
            page.wait_for_timeout(300)  # two frames
            _save(page, name)
        _opened(browser, folder)
        browser.close()


def _opened(browser, folder):
    """The page that opens files, with a record."""
    write_llama(folder / "m.gguf", SPEC)
    settings = {"devices": DEVICES, "n_gpu_layers": 6}
    with ggml.record(folder / "llama.ggrec"), load(folder / "m.gguf", **settings) as model:
        model.eval(range(64))
        model.generate([1, 2, 3], 4)
    with open_page.served(folder / "open") as server:
        page = browser.new_page(viewport={"width": 1440, "height": 1000}, color_scheme="light")
        page.goto(f"http://127.0.0.1:{server.server_port}/index.html")
        page.set_input_files("#choose", folder / "llama.ggrec")
        page.wait_for_selector("iframe", timeout=60_000)
        page.frames[-1].wait_for_selector("#headline")
        page.wait_for_timeout(300)
        _save(page, "open")


def _save(page, name):
    picture = PICTURES / f"{name}.png"
    page.screenshot(path=picture)
    subprocess.run(["pngquant", "--force", "--ext", ".png", "128", picture], check=True)
    print(f"{picture.name}: {picture.stat().st_size >> 10} KiB")


if __name__ == "__main__":
    main()
