"""The plan that the documentation shows: a llama whose attention a GPU cannot run. A hook of
mkdocs.yml makes its page when the site is built, and `tests/house/doc_pictures.py` the pictures.
"""

import tempfile
from pathlib import Path

from ggml_py.models import load
from ggml_py.models.synthetic import LlamaSpec, write_llama

PAGE = "plan.html"
SPEC = LlamaSpec(n_layer=12, n_embd=512, n_head=8, n_head_kv=4, n_ff=1536, n_vocab=4096)
DEVICES = ("sim:gpu0,profile=cuda", "CPU")


def planned(cache="iq4_nl"):
    """The plan of a prompt, with a cache of that type."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.gguf"
        write_llama(path, SPEC)
        options = {"type_k": cache, "type_v": cache, "n_gpu_layers": 99}
        with load(path, devices=DEVICES, **options) as model:
            return model.plan(n_tokens=64)


def on_files(files, config):
    """Adds the page to the site."""
    from mkdocs.structure.files import File

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / PAGE
        planned().export(path)
        files.append(File.generated(config, PAGE, content=path.read_text()))
