"""The rest of profile_cases.py: convolutions, pooling, reductions, training, small ops."""

from __future__ import annotations

from .profile_cases import CASES, enlarged, of_one, tensor, times, view_of


def clamp(c, p):
    ne, kind = p["ne"], p["type"]
    a = enlarged(c, kind, ne, 3, 2, 5, 4) if p.get("v") else tensor(c, kind, ne)
    return c.clamp(a, p["min"], p["max"])


def leaky_relu(c, p):
    return c.leaky_relu(tensor(c, p["type"], p["ne_a"]), p["negative_slope"], True)


def summed(name):
    def build(c, p):
        ne, a = p["ne"], tensor(c, p["type"], p["ne"])
        if p.get("slice"):
            nb = a.nb
            a = c.view_4d(a, *ne[:2], ne[2] // 2, ne[3] - 1, nb[1], nb[2] * 2, nb[3], nb[3])
        turn = p.get("permute", 0)
        if turn:
            a = c.permute(a, *(turn if isinstance(turn, tuple) else (0, 2, 3, 1)))
        return getattr(c, name)(a)

    return build


def acc(c, p):
    a = tensor(c, p["type"], p["ne_a"])
    ne, dim = list(p["ne_b"]), p.get("stride_dim", -1)
    if dim in (1, 2, 3):
        whole = tensor(c, p["type"], [n + (i == dim) for i, n in enumerate(ne)])
        b = view_of(c, whole, ne, whole.nb[1])
    else:
        b = tensor(c, p["type"], ne)
    return c.acc(a, b, *a.nb[1:], 0)


def set_(c, p):
    ne, dim = p["ne"], p["dim"]
    src = tensor(c, p["type_src"], ne)
    dst = tensor(c, p["type_dst"], [n * 2 if i < dim else n for i, n in enumerate(ne)])
    offset = sum((dst.ne[i] - ne[i]) // 2 * dst.nb[i] for i in range(dim))
    make = c.set_inplace if p.get("inplace") else c.set
    return make(dst, src, *src.nb[1:], offset)


def repeat_back(c, p):
    ne, nr = p["ne"], p["nr"]
    a = tensor(c, p["type"], times(ne, nr))
    if p["v"]:
        a = view_of(c, a, [n if r == 1 else n // 2 for n, r in zip(a.ne, nr, strict=True)])
    return c.repeat_back(a, tensor(c, p["type"], ne))


def get_rows_back(c, p):
    n, r, b = p["n"], p["r"], p["b"]
    rows = tensor(c, "i32", [r, b])
    if p["v"]:
        rows = c.view_2d(rows, r // 2, b, rows.nb[1], 0)
    forward = tensor(c, p["type"], [n, p["m"], b])
    return c.get_rows_back(tensor(c, p["type"], [n, r, b]), rows, forward)


def two_alike(name, *names):
    """Ops with two sources of the same shape."""

    def build(c, p):
        sources = (tensor(c, p["type"], p["ne"]) for _ in range(2))
        return getattr(c, name)(*sources, *(p[n] for n in names))

    return build


def loss_back(c, p):
    grad, a, b = tensor(c, p["type"], [1]), *(tensor(c, p["type"], p["ne"]) for _ in range(2))
    return c.cross_entropy_loss_back(grad, a, b)


def count_equal(c, p):
    a, b = (c.argmax(tensor(c, p["type"], p["ne"])) for _ in range(2))
    return c.count_equal(a, b)


def opt_step(name, n_params, n_more):
    def build(c, p):
        a = tensor(c, p["type"], p["ne"])
        a.set_param()
        more = (tensor(c, p["type"], p["ne"]) for _ in range(n_more))
        return getattr(c, name)(a, *more, tensor(c, "f32", [n_params]))

    return build


def conv_2d_dw(c, p):
    kernel = tensor(c, p.get("type_kernel", "f32"), p["ne_kernel"])
    image = tensor(c, "f32", p["ne_input"])
    if p["cwhn"]:
        image = c.permute(c.cont(c.permute(image, 1, 2, 0, 3)), 2, 0, 1, 3)
        kernel = c.permute(c.cont(c.permute(kernel, 2, 3, 1, 0)), 3, 2, 0, 1)
    steps = [p[n] for n in ("stride", "padding", "dilation") for _ in range(2)]
    return c.conv_2d_dw_direct(kernel, image, *steps)


def conv_3d(c, p):
    channels, batch, out = p["IC"], p["N"], p["OC"]
    image = tensor(c, "f32", [p["IW"], p["IH"], p["ID"], channels * batch])
    kernel = tensor(c, p["type_kernel"], [p["KW"], p["KH"], p["KD"], channels * out])
    steps = [p[f"{letter}{i}"] for letter in "spd" for i in range(3)]
    return c.conv_3d_direct(kernel, image, *steps, channels, batch, out)


def conv_transpose_1d(c, p):
    kernel, data = tensor(c, "f32", p["ne_kernel"]), tensor(c, "f32", p["ne_input"])
    return c.conv_transpose_1d(kernel, data, p["s0"], p["p0"], p["d0"])


def conv_transpose_2d(c, p):
    kernel = tensor(c, p.get("kernel_type", "f16"), p["ne_kernel"])
    return c.conv_transpose_2d_p0(kernel, tensor(c, "f32", p["ne_input"]), p["stride"])


def col2im_1d(c, p):
    columns = tensor(c, p["type"], [p["K"] * p["OC"], p["T_in"]])
    return c.col2im_1d(columns, p["s0"], p["OC"], p["p0"])


def im2col_3d(c, p):
    image = tensor(c, p["type_input"], p["ne_input"])
    if p.get("v"):
        image = view_of(c, image, [n - 2 for n in image.ne])
    kernel = tensor(c, p["type_kernel"], p["ne_kernel"])
    steps = [p[f"{letter}{i}"] for letter in "spd" for i in range(3)]
    return c.im2col_3d(kernel, image, p["IC"], *steps, p["dst_type"])


def pool_1d(c, p):
    a = tensor(c, p["type_input"], p["ne_input"])
    return c.pool_1d(a, p["pool_type"], p["k0"], p["s0"], p["p0"])


def pad_reflect_1d(c, p):
    return c.pad_reflect_1d(tensor(c, p["type"], p["ne_a"][:2]), p["pad_0"], p["pad_1"])


def roll(c, p):
    a = tensor(c, "f32", [10, 5, 4, 3])
    if p.get("permute"):
        a = c.permute(a, 0, 2, 1, 3)
    return c.roll(a, *(p[f"shift{i}"] for i in (0, 1, 3, 4)))


def solve_tri(c, p):
    a, b = tensor(c, p["type"], p["ne_lhs"]), tensor(c, p["type"], p["ne_rhs"])
    return c.solve_tri(a, b, True, True, False)


def timestep_embedding(c, p):
    return c.timestep_embedding(tensor(c, p["type"], p["ne_a"]), p["dim"], p["max_period"])


def lightning_indexer(c, p):
    size, heads, kv, n, ns = p["hsk"], p["nh"], p["kv"], p["nb"], p["ns"]
    q, k = tensor(c, "f32", [size, heads, n, ns]), tensor(c, p["type_K"], [size, 1, kv, ns])
    weights, mask = tensor(c, "f32", [heads, n, 1, ns]), tensor(c, "f16", [kv, n, 1, p["nm"]])
    return c.lightning_indexer(q, k, weights, mask)


def hc_comb(c, p):
    mixes, scale, base = (tensor(c, "f32", ne) for ne in ([24, p["n_tokens"]], [3], [24]))
    return c.dsv4_hc_comb(mixes, scale, base, p["eps"], p["n_iter"])


def hc_pre(c, p):
    n_hc, n = p.get("n_hc", 4), p["n_tokens"]
    x = tensor(c, "f32", [p["n_embd"], n_hc, n])
    if p.get("gated"):
        return c.dsv4_hc_pre_gated(x, tensor(c, "f32", [p["n_embd"], n_hc, n]), 1 / n_hc)
    return c.dsv4_hc_pre(x, tensor(c, "f32", [n_hc, n]))


def hc_post(c, p):
    n_embd, n = p["n_embd"], p["n_tokens"]
    x, residual, post = (tensor(c, "f32", ne) for ne in ([n_embd, n], [n_embd, 4, n], [4, n]))
    comb = None if p.get("identity") else tensor(c, "f32", [4, 4, n])
    return c.dsv4_hc_post(x, residual, post, comb)


ALL_CASES = {
    **CASES,
    "CLAMP": clamp,
    "LEAKY_RELU": leaky_relu,
    **{name: summed(name.lower()) for name in ("SUM", "SUM_ROWS", "MEAN")},
    "ACC": acc,
    "SET": set_,
    "REPEAT_BACK": repeat_back,
    "GET_ROWS_BACK": get_rows_back,
    "SOFT_MAX_BACK": two_alike("soft_max_ext_back", "scale", "max_bias"),
    "SILU_BACK": two_alike("silu_back"),
    "RMS_NORM_BACK": two_alike("rms_norm_back", "eps"),
    "CROSS_ENTROPY_LOSS": two_alike("cross_entropy_loss"),
    "CROSS_ENTROPY_LOSS_BACK": loss_back,
    "COUNT_EQUAL": count_equal,
    "OPT_STEP_ADAMW": opt_step("opt_step_adamw", 7, 3),
    "OPT_STEP_SGD": opt_step("opt_step_sgd", 2, 1),
    "ADD1": lambda c, p: c.add1(tensor(c, p["type"], p["ne"]), tensor(c, p["type"], [1])),
    "ARANGE": lambda c, p: c.arange(p["start"], p["stop"], p["step"]),
    "FILL": of_one("fill", "c"),
    "TRI": of_one("tri", "tri_type"),
    "CONV_2D_DW": conv_2d_dw,
    "CONV_3D": conv_3d,
    "CONV_TRANSPOSE_1D": conv_transpose_1d,
    "CONV_TRANSPOSE_2D": conv_transpose_2d,
    "COL2IM_1D": col2im_1d,
    "IM2COL_3D": im2col_3d,
    "POOL_1D": pool_1d,
    "PAD_REFLECT_1D": pad_reflect_1d,
    "ROLL": roll,
    "SOLVE_TRI": solve_tri,
    "TIMESTEP_EMBEDDING": timestep_embedding,
    "LIGHTNING_INDEXER": lightning_indexer,
    "DSV4_HC_COMB": hc_comb,
    "DSV4_HC_PRE": hc_pre,
    "DSV4_HC_POST": hc_post,
}
