"""A build of libllama that is killed."""

import os
import signal
import subprocess
import time

import pytest

from ggml_py.boundary.ffi import BUILD

from ..support.build_support import command, live_cache

pytestmark = [pytest.mark.needs(release="default"), pytest.mark.thorough("builds")]


def objects(cache):
    return [name for _, _, names in os.walk(cache / "trees") for name in names if name[-2:] == ".o"]


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_killed_build_is_not_taken_for_whole(tmp_path, how):
    from vendor import identity, releases

    cache = live_cache(tmp_path / "cache")
    identity.unpacked(releases.default(), cache, whole=True)
    words = ["--llama", "--on", BUILD["folder"]]
    process = subprocess.Popen(
        command(*words, cache=cache), stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    deadline = time.monotonic() + 120
    while len(objects(cache)) < 3:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(how)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == (130 if how == signal.SIGINT else -signal.SIGKILL), errors
    assert "Traceback" not in errors
    assert not [path for path in cache.glob("llama/*") if not path.name.startswith(".")]
    asked = subprocess.run(
        command(*words, "--no-build", cache=cache), capture_output=True, text=True, check=False
    )
    assert asked.returncode == 1
    assert f"libllama for {BUILD['key']} is not built: it would be in {cache}" in asked.stderr
    # Object files of a build that was killed are not trusted.
    assert list(cache.glob("trees/*/BUILDING"))
