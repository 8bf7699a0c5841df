"""The hatchling hook: adds the finished build, and the files for a later build, to the wheel."""

from __future__ import annotations

import sysconfig
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

import build_ggml
from vendor import pep517
from vendor.identity import ROOT


class GgmlHook(BuildHookInterface[Any]):
    """Called by hatchling once per wheel; `version` is "standard" or "editable"."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build, or find the build; set the wheel's tag and which files go where."""
        if pep517.is_pure():
            self.build_config.target_config["exclude"] = ["/ggml_py/native"]
            note = ROOT / "vendor" / "lacking.txt"
            build_data["force_include"][str(note)] = f"ggml_py/native/{note.name}"
            return
        built = pep517.built()
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["pure_python"] = False
        # The module uses the limited API: one wheel serves every CPython from 3.10 on.
        build_data["tag"] = f"cp310-abi3-{platform}"
        if version == "editable":
            build_ggml.place(built)
            return
        include = build_data["force_include"]
        include[str(built)] = f"ggml_py/native/lib/{built.name}"
        for place, folder in pep517.brought(built).items():
            include[str(folder)] = f"ggml_py/native/lib/{place}"
        # `ggml-py build` runs these, also from an installed package.
        include[str(ROOT / "build_ggml.py")] = "ggml_py/_build/build_ggml.py"
        for path in (*ROOT.glob("vendor/*.py"), *ROOT.glob("vendor/*.toml")):
            include[str(path)] = f"ggml_py/_build/vendor/{path.name}"
