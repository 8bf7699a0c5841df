"""Arrays of C structs are read as numpy's structured arrays are."""

import random

import numpy as np
import pytest

from ggml_py.trace.structs import Member, Rows, StructLayout, numbers

INNER = StructLayout(16, (Member("n", "u8", 0), Member("tag", "S5", 9)))
WHOLE = StructLayout(
    96, (Member("e", "i8", 80), Member("a", "i1", 0), Member("ne", "i4:4", 4),
         Member("in", INNER, 24),
         Member("u", "u2:3", 40), Member("name", "S20", 50), Member("one", "i4:1", 72)),
)  # fmt: skip


def dtype_of(layout):
    formats = []
    for _name, format_, _at in layout.members:
        if isinstance(format_, StructLayout):
            formats.append(dtype_of(format_))
        else:
            base, _colon, n = format_.partition(":")
            formats.append((base, (int(n),)) if n else base)
    return np.dtype(
        {"names": [m.name for m in layout.members], "formats": formats,
         "offsets": [m.offset for m in layout.members], "itemsize": layout.size}
    )  # fmt: skip


def plain(value, layout):
    if isinstance(value, np.ndarray):
        return tuple(value.tolist())
    if isinstance(layout, StructLayout):
        return {m.name: plain(value[m.name], m.format) for m in layout.members}
    return value.item() if isinstance(value, np.generic) else value


@pytest.mark.parametrize("seed", range(4))
def test_rows_are_those_of_numpy(seed):
    rng = random.Random(seed)
    content = bytes(rng.choice((0, 0, 1, 65, 255)) for _ in range(5 * WHOLE.size))
    rows = Rows(WHOLE, content)
    expected = [plain(row, WHOLE) for row in np.frombuffer(content, dtype_of(WHOLE))]
    assert len(rows) == 5 and [dict(row) for row in rows] == expected
    for name in WHOLE.by_name:
        assert rows[name] == rows.columns()[name] == [row[name] for row in expected]
    assert [*rows.at([3, 0, 3])] == [expected[i] for i in (3, 0, 3)]
    assert numbers(content, "u4") == tuple(np.frombuffer(content, "u4").tolist())


def test_no_rows_have_empty_columns():
    assert Rows(WHOLE, b"").columns() == {name: [] for name in WHOLE.by_name}
    assert [*Rows(WHOLE, b"")] == [] and numbers(b"") == ()


@pytest.mark.parametrize("members", [
    [("a", "f4", 0)], [("a", "i3", 0)], [("a", "i4:0", 0)], [("a", "i4:", 0)], [("a", "S0", 0)],
    [("a", "i4:-1", 0)], [("a", "S", 0)], [("a", "", 0)], [("a", "i4:x", 0)], [("a", "i4", -1)],
    [("a", "i8", 1)], [("a", "i4", 2)], [("a", "i4", 0), ("b", "i4", 3)],
    [("a", "i4", 0), ("a", "i4", 4)],
    [("a", "i4:99999999999999999999", 0)], [("a", "S99999999999999999999", 0)],
    [("a", StructLayout(9, ()), 0)],
])  # fmt: skip
def test_a_struct_that_cannot_be_is_refused(members):
    with pytest.raises(ValueError):
        StructLayout(8, tuple(Member(*member) for member in members))


def test_a_part_of_a_row_is_refused():
    for content in (b"1234567", b"123456789"):
        with pytest.raises(ValueError, match="not whole"):
            Rows(StructLayout(8, ()), content)
    with pytest.raises(ValueError, match="not whole"):
        numbers(b"123")
    with pytest.raises(ValueError, match="a row of 0 bytes"):
        StructLayout(0, ())
