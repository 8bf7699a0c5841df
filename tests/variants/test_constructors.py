"""The table of constructors: fresh, whole, and never a wrong mapping."""

import random
from pathlib import Path

import pytest

import ggml_py as ggml
from ggml_py.boundary.ffi import BUILD
from ggml_py.trace.record import VIEW_OPS
from ggml_py.variants import constructor_table, learn, rebuild
from ggml_py.variants.constructor import Argument, Constructor
from ggml_py.variants.making import Node
from ggml_py.variants.rebuild import Replay

from ..support import op_survival as survive
from ..support.wild_nodes import wild

REPO = Path(__file__).parents[2]
DEFAULT = pytest.mark.needs(release="default", why="the table is of the default pin")


@pytest.fixture(scope="module")
def maker():
    from vendor import constructors

    return constructors


@DEFAULT
def test_the_committed_table_is_what_the_build_teaches(maker):
    committed = (REPO / "ggml_py" / "variants" / "constructor_table.py").read_text()
    assert committed == maker.text(maker.table()), "stale: python -m vendor.constructors"
    assert BUILD["ggml_version"] == constructor_table.RELEASE


@DEFAULT
def test_a_constructor_that_is_not_learnt_is_noticed(maker, monkeypatch):
    monkeypatch.delitem(maker.SAMPLES, "mul_mat_id")
    monkeypatch.setitem(maker.LEFT_OUT, "add", "planted")
    said = r"not learnt: \['mul_mat_id'\]; needlessly left out: \['add'\]"
    with pytest.raises(ValueError, match=said):
        maker.table()


@DEFAULT
def test_samples_that_disagree_are_noticed(maker):
    node = Node(0, "", 0, (1, 1, 1, 1), (4, 4, 4, 4), (0,) * 16, (), (), -1)
    told = [(node, Argument("eps", "word", (0,))), (node, Argument("eps", "word", (1,)))]
    with pytest.raises(ValueError, match="scale: samples disagree on eps"):
        maker._argument("scale", told)
    assert maker._argument("scale", [(node, Argument("eps", "fixed", (1,)))] * 2) is None


def nodes(seeds=3):
    """Nodes of every op, in a context each."""
    for name in survive.NAMES:
        for seed in range(seeds):
            with ggml.Context(reserve=4 << 20) as ctx, ggml.Context() as scratch:
                node = wild(name, seed, ctx)
                if node is not None and node.op.name not in VIEW_OPS:
                    yield f"{name} {seed}", node, scratch


def same(made, node):
    return all(
        getattr(made, what) == getattr(node, what) for what in ("op", "type", "ne", "nb", "is_view")
    ) and list(made._ptr.op_params) == list(node._ptr.op_params)


@DEFAULT
def test_the_table_and_the_search_find_the_same(monkeypatch):
    """The search may know fewer words of op_params: numbers that a node's own shapes do not let it
    change. A node that has no list of sections may have been made with one of zeros."""
    n = 0
    for key, node, scratch in nodes():
        told = Replay(Node.of(node), scratch)
        with monkeypatch.context() as patch:
            patch.setattr(rebuild, "RELEASE", "another")
            found = Replay(Node.of(node), scratch)
        assert told.recipe.method == found.recipe.method, key
        assert told.recipe.operands == found.recipe.operands, key
        assert told.recipe.sized == found.recipe.sized, key
        if told.recipe.method not in ("xielu", "win_part"):  # words that are computed
            assert told.recipe.owned >= found.recipe.owned, key
            assert repr(told.recipe.values) == repr(found.recipe.values), key
        assert same(told.build(told.state), node), key
        assert same(found.build(found.state), node), key
        n += 1
    assert n > 200


@DEFAULT
def test_nothing_is_searched_for_where_the_table_is_of_this_release(monkeypatch):
    def searched(*_):
        raise AssertionError("a search")

    monkeypatch.setattr(learn, "_guesses", searched)
    with ggml.sim_device("nearest2", supports=lambda t: False) as gpu:
        for _, node, _ in nodes(1):
            assert not ggml.nearest(node, gpu).supported
            return


def test_another_release_searches_and_answers_the_same(monkeypatch):
    monkeypatch.setattr(rebuild, "RELEASE", "another")
    with ggml.Context() as ctx:
        node = ctx.cast(ctx.new_tensor("f32", 256, 4), "iq2_xxs")
        answer = ggml.nearest(node, ggml.device("CPU"))
    assert (answer.constructor, answer.text) == ("cast", "CPY: result iq4_xs instead of iq2_xxs")


def swapped(constructor, rng):
    """The constructor with the places of its arguments, or of its tensors, in another order."""
    places = [(one.where, one.at) for one in constructor.arguments]
    rng.shuffle(places)
    turned = [place for _, place in constructor.operands]
    rng.shuffle(turned)
    arguments = zip(constructor.arguments, places, strict=True)
    operands = zip(constructor.operands, turned, strict=True)
    return Constructor(
        constructor.method,
        tuple((name, place) for (name, _), place in operands),
        tuple(Argument(one.name, *place) for one, place in arguments),
    )


@DEFAULT
def test_a_wrong_table_makes_no_wrong_node(monkeypatch):
    """Every row is checked against the node; where none fits, it is made field by field."""
    rng = random.Random(1)
    wrong = {
        op: tuple(swapped(one, rng) for one in rows)
        for op, rows in constructor_table.CONSTRUCTORS.items()
    }
    assert wrong != constructor_table.CONSTRUCTORS
    monkeypatch.setattr(rebuild, "CONSTRUCTORS", wrong)
    by_field = 0
    for key, node, scratch in nodes():
        replay = Replay(Node.of(node), scratch)
        assert same(replay.build(replay.state), node), key
        by_field += not replay.recipe.method
    assert by_field > 5
