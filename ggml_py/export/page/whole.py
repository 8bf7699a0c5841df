"""A page that is one file, loads nothing else, and runs only its own script."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from functools import cache
from importlib.resources import files
from typing import Any

from ...files.foreign import html
from .. import palette


@cache
def part(name: str) -> str:
    """A file of this folder."""
    return files(__package__).joinpath(name).read_text("utf-8")


def _shorter(script: str) -> str:
    """Without indentation and lines of comments, an eighth of it; no text has several lines."""
    lines = (line.strip() for line in script.splitlines())
    return "".join(f"{line}\n" for line in lines if line and not line.startswith("//"))


def whole(
    title: str,
    headline: str,
    body: str,
    css: str,
    parts: list[str],
    data: Any,
    verdict: str = "",
) -> str:
    """The page. `body` has @TITLE@, @HEADLINE@, maybe @VERDICT@, @DATA@ (as JSON) and @SCRIPT@,
    which are the `parts` in one function. The same arguments give the same bytes."""
    css = palette.css() + css
    script = '"use strict";(() => {\n' + "".join(map(_shorter, parts)) + "})();"
    put = {
        "TITLE": html(title), "HEADLINE": html(headline),
        "SCRIPT": script, "DATA": _json(data),
        "VERDICT": _FLAG.sub(_code, html(verdict)),
    }  # fmt: skip
    filled = re.sub("@([A-Z]+)@", lambda mark: put[mark[1]], body)
    policy = (
        "default-src 'none'; base-uri 'none'; form-action 'none'; img-src data:; "
        f"script-src '{_digest(script)}'; style-src '{_digest(css)}'"
    )
    return (
        f'<!doctype html>\n<html lang="en" data-colors="{" ".join(palette.COLORS)}">\n<head>\n'
        '<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="generator" content="ggml_py">\n'
        f"<title>{html(title)}</title>\n<style>{css}</style>\n</head>\n"
        f"{filled}</html>\n"
    )


_FLAG = re.compile(r"(?<!\S)(-{1,2}[a-zA-Z][\w-]*|`[^`]+`)")  # is not broken


def _code(found: re.Match[str]) -> str:
    return f"<code>{found[1].strip('`')}</code>"


def _json(data: Any) -> str:
    """JSON that no browser takes for anything else: ASCII, without <, > and &."""
    text = json.dumps(data, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _digest(text: str) -> str:
    """The hash by which the page's policy allows a script or style."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
