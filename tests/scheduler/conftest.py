"""Fixtures that several files of this folder share."""

import pytest

from ..support.small_scheduler import Small


@pytest.fixture
def small():
    case = Small()
    yield case
    case.close()
