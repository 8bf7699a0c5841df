"""The page of a plan: its size, and the time to make it, to first paint and to draw a frame.

    apt-get install chromium && python benchmarks/page.py [--layers 12 330]

Prints the rows of the table in docs/VIEW.md.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
from pathlib import Path

from playwright.sync_api import sync_playwright

from ggml_py.models import load
from ggml_py.models.synthetic import LlamaSpec, write_llama

ROUNDS = 5
SPEC = {"n_embd": 64, "n_head": 2, "n_head_kv": 1, "n_ff": 64, "n_vocab": 300}
PAINT = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
FRAME = """() => {
    const {lanes} = page, start = performance.now();
    for (let i = 0; i < 40; i++) {
        lanes.view(i / 40, lanes.fitScale() * 1.2);
        lanes.draw();
        page.minimap.draw();
    }
    lanes.context.getImageData(0, 0, 1, 1);  // what was drawn is there
    return (performance.now() - start) / 40;
}"""


def main() -> None:
    """Prints a row for each number of layers."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, nargs="+", default=[12, 330])
    with tempfile.TemporaryDirectory() as scratch, sync_playwright() as playwright:
        folder = Path(scratch)
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        for n_layer in parser.parse_args().layers:
            write_llama(folder / "m.gguf", LlamaSpec(n_layer=n_layer, **SPEC))
            options = {"type_k": "q5_1", "type_v": "q5_1", "n_gpu_layers": n_layer // 2}
            with load(folder / "m.gguf", devices=("sim:gpu0,profile=cuda", "CPU"), **options) as m:
                m.plan(n_tokens=64).to_json(folder / "p.json")
                plan = type(m.plan(n_tokens=64)).from_json(folder / "p.json")
            start = time.perf_counter()
            plan.export(folder / "p.html", force=True)
            made = time.perf_counter() - start
            paints, frames = [], []
            for _ in range(ROUNDS):
                page = browser.new_page(viewport={"width": 1440, "height": 900})
                page.goto((folder / "p.html").as_uri())
                while (paint := page.evaluate(PAINT)) is None:
                    time.sleep(0.01)
                paints.append(paint)
                frames.append(page.evaluate(FRAME))
                page.close()
            size = (folder / "p.html").stat().st_size
            paint, frame = statistics.median(paints), statistics.median(frames)
            row = f"| {len(plan.nodes):,} | {len(plan.tensors):,} | {size / 1e6:.2f} MB "
            print(f"{row}| {made:.1f} s | {paint:.0f} ms | {frame:.1f} ms |")
        browser.close()


if __name__ == "__main__":
    main()
