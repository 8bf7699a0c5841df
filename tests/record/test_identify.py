"""What is given to a program is tried before."""

from pathlib import Path

import _cffi_backend
import pytest

from ggml_py.errors import NotBuiltError
from ggml_py.record.programs.identify import check_loads

LIBRARY = Path(_cffi_backend.__file__)  # any


def test_a_module_that_a_program_could_not_load_is_refused(tmp_path):
    check_loads(LIBRARY, [LIBRARY])
    broken = tmp_path / "libggml_py_sim.so"
    broken.write_bytes(b"no library" * 100)
    with pytest.raises(NotBuiltError, match=r"libggml_py_sim\.so does not load beside .*: OSError"):
        check_loads(broken, [LIBRARY])
