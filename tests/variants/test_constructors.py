"""Where nodes keep the arguments of their constructors: whole, and never a wrong node."""

import random
from functools import cache

import pytest

import ggml_py as ggml
from ggml_py.trace.record import VIEW_OPS
from ggml_py.variants import rebuild
from ggml_py.variants.constructor import constructors_of
from ggml_py.variants.rebuild import Replay, node_of

from ..support import op_samples
from ..support import op_survival as survive
from ..support.wild_nodes import wild

DEFAULT = pytest.mark.needs(release="default", why="the samples are of the default pin")
SHAPED = "its shape comes from a tensor that the node does not keep"
PARAM = "its first tensor must be a parameter (set_param)"
BY_FIELD = {
    "get_rows_back": SHAPED,
    "im2col_back": "its shape is a list of numbers that must fit together",
    "opt_step_adamw": PARAM,
    "opt_step_sgd": PARAM,
    "repeat_back": SHAPED,
}
COMPUTED = {"xielu": {"alpha_n", "alpha_p"}}  # the node keeps a function of them


@DEFAULT
def test_arguments_are_read_from_the_node_of_every_constructor():
    by_field = set()
    for method in op_samples.NAMES:
        for sample in op_samples.samples_of(method):
            with ggml.Context(reserve=4 << 20) as context, ggml.Context() as scratch:
                node, given = op_samples.call(context, method, sample)
                replay = Replay(node_of(node), scratch)
                if not replay.recipe.method and node.op.name not in VIEW_OPS:
                    by_field.add(method)
                for one in constructors_of(node.op.name, node.view_src is not None):
                    if one.method == method and (bound := replay._bound(one)) is not None:
                        values = dict(bound[1].values)
                        for name in values.keys() - COMPUTED.get(method, set()):
                            assert values[name] == given[name], f"{name} of {method}"
    assert by_field == set(BY_FIELD)


def nodes(seeds=3):
    """Nodes of every op, in a context each."""
    for name in survive.NAMES:
        for seed in range(seeds):
            with ggml.Context(reserve=4 << 20) as ctx, ggml.Context() as scratch:
                node = wild(name, seed, ctx)
                if node is not None and node.op.name not in VIEW_OPS:
                    yield f"{name} {seed}", node, scratch


def swapped(constructor, rng):
    """The constructor with the places of its arguments, or of its tensors, in another order."""
    places = [one.at for one in constructor.arguments]
    turned = [place for _, place in constructor.operands]
    rng.shuffle(places)
    rng.shuffle(turned)
    operands = zip(constructor.operands, turned, strict=True)
    arguments = zip(constructor.arguments, places, strict=True)
    return constructor._replace(
        operands=tuple((name, place) for (name, _), place in operands),
        arguments=tuple(one._replace(at=at) for one, at in arguments),
    )


def test_a_wrong_table_makes_no_wrong_node(monkeypatch):
    """Every constructor is checked against the node; where none fits, it is made field by field.
    Another release may keep an argument elsewhere."""
    rng = random.Random(1)
    wrong = cache(lambda op, inplace: [swapped(one, rng) for one in constructors_of(op, inplace)])
    monkeypatch.setattr(rebuild, "constructors_of", wrong)
    by_field = 0
    for key, node, scratch in nodes():
        call = node_of(node)
        replay = Replay(call, scratch)
        assert node_of(replay.build(replay.state)) == call, key
        by_field += not replay.recipe.method
    assert by_field > 5
