"""What is given to a program is tried before."""

from pathlib import Path

import _cffi_backend
import pytest

from ggml_py.errors import NotBuiltError
from ggml_py.record.programs import identify
from ggml_py.record.programs.identify import SIMULATOR, Recorder, check_loads, simulator_for

LIBRARY = Path(_cffi_backend.__file__)  # any


def test_a_module_that_a_program_could_not_load_is_refused(tmp_path):
    check_loads(LIBRARY, [LIBRARY])
    broken = tmp_path / "libggml_py_sim.so"
    broken.write_bytes(b"no library" * 100)
    with pytest.raises(NotBuiltError, match=r"libggml_py_sim\.so does not load beside .*: OSError"):
        check_loads(broken, [LIBRARY])


def test_a_simulator_is_tried_before_the_program_starts(tmp_path, monkeypatch):
    (tmp_path / "recorder.json").write_text('{"max_name": null}')
    (tmp_path / SIMULATOR).write_bytes(b"no library" * 100)
    monkeypatch.setattr(identify, "_folder", lambda *_given: tmp_path)
    given = Recorder(tmp_path / "lib.so", "0.26.0", "", LIBRARY, LIBRARY, "")
    with pytest.raises(NotBuiltError, match="does not load"):
        simulator_for(given)
