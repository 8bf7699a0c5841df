"""The quick native look at a view says what graphs/views.py says."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ggml_py import ArgumentError, Context
from ggml_py.boundary.ffi import lib
from ggml_py.enums import Type
from ggml_py.graphs.views import check_view

NE_MAX, NB_MAX = (1 << 63) - 1, (1 << 64) - 1
small = st.integers(1, 40)
ne_s = st.one_of(small, small.map(lambda n: 32 * n), st.integers(-2, NE_MAX))
nb_s = st.one_of(st.integers(0, 800), st.integers(0, NB_MAX))


@settings(max_examples=1000, deadline=None)
@given(
    type_=st.sampled_from([Type.F32, Type.F16, Type.Q4_0]),
    ne=st.lists(ne_s, min_size=1, max_size=4),
    nb=st.lists(nb_s, min_size=3, max_size=3),
    offset=nb_s,
    start=st.integers(0, 300),
)
@pytest.mark.thorough("long")
def test_the_native_look_agrees(type_, ne, nb, offset, start):
    n = len(ne)
    with Context() as ctx:
        whole = ctx.new_tensor(type_, 32, 3, 2)
        tensors = [whole]
        start -= start % whole.nb[0]  # a view of whole elements or blocks
        if start <= whole.nbytes - 18:
            tensors.append(ctx.view_1d(whole, 32 if type_ == Type.Q4_0 else 2, start))
        for a in tensors:
            four = [*ne, 1, 1, 1][:4]
            fits = lib.gp_view_fits(a.ptr, n, *four, *nb, offset)
            try:
                check_view(a, tuple(ne), tuple(nb[: n - 1]), offset)
            except ArgumentError:
                assert not fits
            else:
                assert fits or 0 in ne  # of no elements: graphs/views.py has the last word


@pytest.mark.parametrize("n", [True, 2.5])
def test_what_is_no_whole_number_is_named(n):
    with Context() as ctx:
        whole = ctx.new_tensor(Type.F32, 32)
        with pytest.raises(TypeError, match="ne0: expected a whole number, got"):
            ctx.view_1d(whole, n, 0)
