"""Checks of a handle that was closed."""

import pytest

import ggml_py as ggml

from .handle_kinds import KINDS


def check_use_after_close(kind, stand):
    """Every use of a closed handle raises."""
    handle = KINDS[kind].make(stand)
    assert not handle.closed
    handle.close()
    handle.close()  # harmless
    assert handle.closed
    with pytest.raises(ggml.ClosedError, match=kind):
        _ = handle.ptr
    with pytest.raises(ggml.ClosedError), handle:
        pass
    assert "closed" in repr(handle)
