"""The BLAS device, or a skip."""

import pytest

import ggml_py as ggml


def blas():
    if "BLAS" not in [d.name for d in ggml.devices()]:
        pytest.skip("this build has no BLAS")
    return ggml.device("BLAS")
