"""Writes docs/pictures: the page of a llama whose attention a GPU cannot run.

    apt-get install chromium pngquant && python tests/house/doc_pictures.py
"""

import shutil
import subprocess
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

from ggml_py.models import load
from ggml_py.models.synthetic import LlamaSpec, write_llama

PICTURES = Path(__file__).parents[2] / "docs" / "pictures"
SPEC = LlamaSpec(n_layer=12, n_embd=512, n_head=8, n_head_kv=4, n_ff=1536, n_vocab=4096)
DEVICES = ("sim:gpu0,profile=cuda", "CPU")

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
        write_llama(folder / "m.gguf", SPEC)
        plans = {}
        for kind in ("iq4_nl", "q8_0"):
            options = {"type_k": kind, "type_v": kind, "n_gpu_layers": 99}
            with load(folder / "m.gguf", devices=DEVICES, **options) as model:
                plans[kind] = model.plan(n_tokens=64)
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
            picture = PICTURES / f"{name}.png"
            page.screenshot(path=picture)
            subprocess.run(["pngquant", "--force", "--ext", ".png", "128", picture], check=True)
            print(f"{picture.name}: {picture.stat().st_size >> 10} KiB")
        browser.close()


if __name__ == "__main__":
    main()
