"""Write a llama model of any size, with random weights, as a GGUF file.

    python examples/make_model.py tiny.gguf
    python examples/make_model.py 100m.gguf --n-layer 12 --n-embd 768 --n-head 12 --n-head-kv 4 \
        --n-ff 2048 --n-vocab 16000 --type q4_0

llama.cpp's own programs load the file too.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from ggml_py.errors import GgmlError
from ggml_py.models.synthetic import LlamaSpec, write_llama


def main(argv: list[str] | None = None) -> int:
    """Writes the file that the command line describes. Returns 0, or 1 after printing an error."""
    usual = LlamaSpec()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path, help="the file to write")
    for name in ("n_layer", "n_embd", "n_head", "n_head_kv", "n_ff", "n_vocab", "n_ctx", "seed"):
        option = "--" + name.replace("_", "-")
        default = getattr(usual, name)
        parser.add_argument(option, type=int, default=default, help=f"default {default}")
    parser.add_argument(
        "--type", default=usual.type, help="f32, f16, bf16, q4_0, q8_0, …; default q4_0"
    )
    parser.add_argument("--tied", action="store_true", help="use the token embedding as the output")
    options = vars(parser.parse_args(argv))
    out: Path = options.pop("out")
    try:
        spec = LlamaSpec(**options)
        write_llama(out, spec)
    except (GgmlError, OSError) as error:
        print(f"make_model: {error}", file=sys.stderr)
        return 1
    print(f"{out}: {spec.n_params / 1e6:.1f}M parameters, {out.stat().st_size / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
