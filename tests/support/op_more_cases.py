"""More cases for op_cases.py, with more operands or indices: products, attention, images, states.
"""

from __future__ import annotations

from .op_cases import FLOAT, QUANTIZED, Draw, both, op
from .op_layouts import Operand
from .op_metamorphosis import Case

ROPE_NUMBERS = {
    "n_ctx_orig": 32, "freq_base": 1e4, "freq_scale": 1.0, "ext_factor": 0.0, "attn_factor": 1.0,
    "beta_fast": 32.0, "beta_slow": 1.0,
}  # fmt: skip


@op("mul_mat")
def _mul_mat(d: Draw) -> Case:
    type_ = d.type(*FLOAT, "f32", *QUANTIZED)
    k, m, n = d.row(type_), d.size(33), d.size(33)
    a2, a3 = d.small(), d.small()
    second = d.type("f32", "f32", "f32", type_, "bf16")
    case = d.case(d.t(type_, k, m, a2, a3), d.t(second, k, n, a2 * d.small(), a3 * d.small()))
    if d.rng.random() < 0.05:
        return hadamard(d)
    return case


def hadamard(d: Draw) -> Case:
    n = d.rng.choice((1, 2, 8, 16, 64, 12))
    a = d.f32(n, n + (d.wild and 1))
    case = d.case(a, d.t(d.type("f32", "f16"), n, d.size(8), d.small()))
    make = case.call

    def call(ctx, *tensors):
        product = make(ctx, *tensors)
        product.set_hint(1)
        return product

    case.call, case.numbers = call, {"hint": 1}
    return case


@op("mul_mat_id")
def _mul_mat_id(d: Draw) -> Case:
    type_ = d.type(*FLOAT, "f32", *QUANTIZED)
    k, m, experts, used, tokens = d.row(type_), d.size(17), d.small(), d.small(), d.size(8)
    rows = d.rng.choice((1, used))
    second = d.type("f32", "f32", "f32", type_)
    b = d.t(second, k, rows, tokens)
    return d.case(d.t(type_, k, m, experts), b, d.index(experts, used, tokens))


@op("out_prod")
def _out_prod(d: Draw) -> Case:
    type_ = d.type("f32", "f32", "f16", *QUANTIZED)
    k, a2, a3 = d.size(33), d.small(), d.small()
    more = d.small() if type_ == "f32" else 1
    return d.case(d.t(type_, d.row(type_), k, a2, a3), d.f32(d.size(17), k, a2 * more, a3))


@op("get_rows")
def _get_rows(d: Draw) -> Case:
    type_ = d.type(*FLOAT, "i32", *QUANTIZED)
    n, rows, a2, a3 = d.row(type_), d.size(8), d.small(), d.small()
    return d.case(d.t(type_, n, rows, a2, a3), d.index(rows, d.size(8), a2, a3))


@op("get_rows_back")
def _get_rows_back(d: Draw) -> Case:
    n, rows, chosen = d.size(), d.size(8), d.size(8)
    grad = d.t(d.type("f32", "f16"), n, chosen)
    return d.case(grad, d.index(rows, chosen + (d.wild and 1)), d.f32(n, rows))


@op("set_rows")
def _set_rows(d: Draw) -> Case:
    into = d.type(*FLOAT, *QUANTIZED, "i32", "i64", "f64")
    source = d.type("f32", "f32", "f16")
    n, rows, chosen, a2, a3 = d.row(into), d.size(8), d.size(4), d.small(), d.small()
    b2, b3 = d.rng.choice((1, a2)), d.rng.choice((1, a3))
    index = d.index(rows, chosen, b2, b3, type_=d.rng.choice(("i32", "i64")))
    return d.case(d.t(into, n, rows, a2, a3), d.t(source, n, chosen, a2, a3), index)


@op(*both("soft_max_ext"))
def _soft_max(d: Draw) -> Case:
    ne = d.shape()
    mask = None
    if d.rng.random() < 0.7:
        mask = d.t(
            d.type("f32", "f16"), ne[0], ne[1] + d.rng.choice((0, 0, 3)),
            d.rng.choice((1, ne[2])), d.rng.choice((1, ne[3])),
        )  # fmt: skip
    case = d.case(
        d.f32(*ne), mask, scale=d.number(1.0, 0.3), max_bias=8.0 if mask and d.wild else 0.0
    )
    if d.rng.random() < 0.3:
        with_sinks(case, d.f32(ne[2]))
    return case


def with_sinks(case: Case, sinks: Operand) -> None:
    make = case.call

    def call(ctx, *tensors):
        made = make(ctx, *tensors[:-1])
        made.add_sinks(tensors[-1])
        return made

    case.operands.append(sinks)
    case.call = call


@op("flash_attn_ext")
def _flash_attn_ext(d: Draw) -> Case:
    keys = d.type("f16", "f32", "bf16", *QUANTIZED)
    values = keys if d.rng.random() < 0.7 else d.type("f16", "f32", *QUANTIZED)
    head, width = d.row(keys), d.row(values)
    n, n_kv = d.rng.choice((1, 2, 5, 70)), d.rng.choice((1, 3, 16, 33, 520))
    if n * n_kv > 8000:
        n = 1
    heads, groups, batch = d.small(), d.rng.choice((1, 2)), d.rng.choice((1, 1, 2))
    mask = d.t("f16", n_kv, n, d.rng.choice((1, heads)), 1) if d.rng.random() < 0.6 else None
    case = d.case(
        d.f32(head, n, heads * groups, batch), d.t(keys, head, n_kv, heads, batch),
        d.t(values, width, n_kv, heads, batch), mask,
        scale=d.number(0.2, 1.0), max_bias=0.0, logit_softcap=d.number(0.0, 3.0),
    )  # fmt: skip
    if d.rng.random() < 0.3:
        with_sinks(case, d.f32(heads * groups))
    return case


@op("rope", "rope_inplace", *both("rope_ext", "rope_custom"), "rope_ext_back")
def _rope(d: Draw) -> Case:
    n = 2 * d.size(32) + (d.wild and d.rng.random() < 0.3)
    heads, tokens = d.small(), d.size(5)
    dims = int(d.number(n, n, max(2, n // 4 * 2)))
    mode = int(d.number(0, 2, 0, 2, 2))
    operands: list[Operand | None] = [
        d.t(d.type("f32", "f16"), n, heads, tokens, d.small()), d.index(50, tokens),
    ]  # fmt: skip
    if d.name.startswith("rope_ext"):
        operands.append(d.f32(min(max(dims // 2, 1), 64)) if d.rng.random() < 0.5 else None)
    numbers: dict[str, object] = {"n_dims": dims, "mode": mode}
    if d.name not in ("rope", "rope_inplace"):
        numbers |= ROPE_NUMBERS | {"ext_factor": d.number(0.0, 1.0)}
    return d.case(*operands, **numbers)


@op(*both("rope_multi"), "rope_multi_back")
def _rope_multi(d: Draw) -> Case:
    n = 2 * d.size(32)
    tokens = d.size(5)
    mode = int(d.number(8, 24, 40))
    dims = n // 2 if mode == 24 else n
    sections = [d.rng.choice((0, 1, 2, n // 8)) for _ in range(4)]
    if d.wild:
        sections[d.rng.randrange(4)] = d.rng.choice((-1, -2, 100))
    factors = d.f32(min(max(dims // 2, 1), 64)) if d.rng.random() < 0.3 else None
    return d.case(
        d.t(d.type("f32", "f16"), n, d.small(), tokens, d.small()), d.index(50, 4 * tokens),
        factors, n_dims=dims, sections=sections, mode=mode, **ROPE_NUMBERS,
    )  # fmt: skip


def _images(d: Draw, kernel: str, image: str = "f32") -> tuple[Operand, Operand]:
    """[width, height, channels, channels out] and [width, height, channels, images]."""
    channels, w, h = d.small(), d.rng.randint(1, 3), d.rng.randint(1, 3)
    a = d.t(kernel, w, h, channels, d.small())
    return a, d.t(image, w + d.size(9), h + d.size(9), channels, d.small())


def _steps(d: Draw, n: int = 2) -> dict[str, object]:
    """Strides, pads and dilations of n dimensions."""
    good = {"s": (1, 2, 3), "p": (0, 1, 2), "d": (1, 1, 2)}
    return {f"{kind}{i}": int(d.number(*good[kind])) for kind in "spd" for i in range(n)}


@op("im2col")
def _im2col(d: Draw) -> Case:
    type_ = d.type("f16", "f32")
    flat = d.rng.random() < 0.3
    a, b = _images(d, "f16", "f32" if type_ == "f32" else d.type("f32", "f16"))
    if flat:
        a, b = d.t("f16", a.ne[0], a.ne[2], d.small()), d.t(b.type, b.ne[0], a.ne[2], d.small())
    steps = _steps(d)
    if flat:
        steps |= {"s1": 0, "p1": 0 if not d.wild else 1, "d1": 0}
    return d.case(a, b, **steps, is_2D=not flat, dst_type=type_)


@op("conv_2d", "conv_2d_direct")
def _conv_2d(d: Draw) -> Case:
    return d.case(*_images(d, d.type("f16", "f32")), **_steps(d))


@op("conv_2d_s1_ph", "conv_2d_sk_p0")
def _conv_2d_simple(d: Draw) -> Case:
    return d.case(*_images(d, d.type("f16", "f32")))


@op("conv_2d_dw", "conv_2d_dw_direct")
def _conv_2d_dw(d: Draw) -> Case:
    _a, b = _images(d, "f32")
    w, h = d.rng.randint(1, 3), d.rng.randint(1, 3)
    return d.case(d.t(d.type("f16", "f32"), w, h, 1, b.ne[2]), b, **_steps(d))


@op("conv_1d", "conv_1d_dw")
def _conv_1d(d: Draw) -> Case:
    channels, w = d.small(), d.rng.randint(1, 3)
    a = d.t(d.type("f16", "f32"), w, 1 if d.name == "conv_1d_dw" else channels, channels)
    return d.case(a, d.f32(w + d.size(17), channels, d.small()), **_steps(d, 1))


@op("im2col_3d", "conv_3d", "conv_3d_direct")
def _conv_3d(d: Draw) -> Case:
    channels, images, out = d.small(), d.rng.choice((1, 2)), d.rng.choice((1, 2))
    kernel = [d.rng.randint(1, 2) for _ in range(3)]
    a = d.t(d.type("f16", "f32"), *kernel, channels * out)
    b = d.f32(*(k + d.size(4) for k in kernel), channels * images)
    steps = _steps(d, 3)
    if d.name == "conv_3d_direct":
        more: dict[str, object] = {"c": channels, "n": images, "oc": out}
        if d.wild:
            more |= {"c": int(d.number(channels)), "n": int(d.number(images))}
        return d.case(a, b, **steps, **more)
    count: dict[str, object] = {"IC": int(d.number(channels))}
    end: dict[str, object] = {"dst_type": d.type("f16", "f32")} if d.name == "im2col_3d" else {}
    return d.case(a, b, **count, **steps, **end)


@op("im2col_back")
def _im2col_back(d: Draw) -> Case:
    kernel, image = _images(d, "f32")
    s0, s1, p0, p1, d0, d1 = _steps(d).values()
    numbers = {"s0": s0, "s1": s1, "p0": p0, "p1": p1, "d0": d0, "d1": d1}
    ne = []
    for i, (s, p, dil) in enumerate(((s0, p0, d0), (s1, p1, d1))):
        ne.append((image.ne[i] + 2 * p - dil * (kernel.ne[i] - 1) - 1) // (s or 1) + 1)
    if not all(0 < n < 100 for n in ne):
        ne = [1, 1]
    grad = d.f32(kernel.ne[0] * kernel.ne[1] * kernel.ne[2], *ne, image.ne[3])
    return d.case(grad, kernel, ne=list(image.ne), **numbers, is_2D=True)


@op("conv_transpose_1d")
def _conv_transpose_1d(d: Draw) -> Case:
    channels = d.small()
    a = d.t(d.type("f16", "f32"), d.size(5), d.small(), channels)
    return d.case(a, d.f32(d.size(9), channels), s0=int(d.number(1, 2, 3)), p0=0, d0=1)


@op("conv_transpose_2d_p0")
def _conv_transpose_2d(d: Draw) -> Case:
    channels = d.small()
    a = d.t(d.type("f16", "f32"), d.size(4), d.size(4), d.small(), channels)
    b = d.f32(d.size(5), d.size(5), channels, d.small())
    return d.case(a, b, stride=int(d.number(1, 2, 3)))


@op("col2im_1d")
def _col2im_1d(d: Draw) -> Case:
    channels, k = d.small(), d.size(5)
    a = d.t(d.type(*FLOAT), k * channels, d.size(9))
    return d.case(a, s0=int(d.number(1, 2, 3)), oc=int(d.number(channels)), p0=int(d.number(0, 1)))


@op("pool_1d", "pool_2d")
def _pool(d: Draw) -> Case:
    a = d.t(d.type("f32", "f16"), d.size(17), d.size(9), d.small(), d.small())
    kind = int(d.number(0, 1))
    if d.name == "pool_1d":
        return d.case(a, op=kind, **{n: int(d.number(*good)) for n, good in (
            ("k0", (1, 2, 3)), ("s0", (1, 2, 3)), ("p0", (0, 1)))})  # fmt: skip
    numbers = {n: int(d.number(1, 2, 3)) for n in ("k0", "k1", "s0", "s1")}
    return d.case(a, op=kind, **numbers, p0=float(d.number(0, 1)), p1=float(d.number(0, 1)))


@op("pool_2d_back")
def _pool_back(d: Draw) -> Case:
    af = d.f32(d.size(9), d.size(9), d.small(), d.small())
    k, s = int(d.number(1, 2, 3)), int(d.number(1, 2, 3))
    ne = [(n - k) // (s or 1) + 1 for n in af.ne[:2]]
    if not all(0 < n < 100 for n in ne):
        ne = [1, 1]
    a = d.f32(*ne, *af.ne[2:])
    return d.case(a, af, op=int(d.number(0, 1)), k0=k, k1=k, s0=s, s1=s, p0=0.0, p1=0.0)


@op("interpolate", "upscale_ext")
def _upscale(d: Draw) -> Case:
    ne = d.shape(17)
    to = {f"ne{i}": int(d.number(n, n * 2, (n + 1) // 2)) for i, n in enumerate(ne)}
    mode = int(d.number(0, 1, 2))
    if d.name == "interpolate" and mode < 3:
        mode |= d.rng.choice((0, 256)) | (512 if mode == 1 and d.rng.random() < 0.5 else 0)
    return d.case(d.f32(*ne), **to, mode=mode)


@op("pad_ext", "pad_ext_circular", "pad_reflect_1d", "roll")
def _pad(d: Draw) -> Case:
    ne = d.shape(17)
    if d.name == "roll":
        shifts = {f"shift{i}": int(d.number(0, n - 1, 1 - n)) for i, n in enumerate(ne)}
        return d.case(d.f32(*ne), **shifts)
    if d.name == "pad_reflect_1d":
        return d.case(d.f32(*ne), p0=int(d.number(0, ne[0] - 1)), p1=int(d.number(0, ne[0] - 1)))
    good = (0, 1, 2, -1 if d.wild else 0)
    pads = {f"{side}p{i}": int(d.number(*good)) for i in range(4) for side in "lr"}
    return d.case(d.f32(*ne), **pads)


@op("timestep_embedding")
def _timestep_embedding(d: Draw) -> Case:
    dim, max_period = int(d.number(1, 2, 8, 7)), int(d.number(10, 1000))
    return d.case(d.f32(d.size()), dim=dim, max_period=max_period)


@op("win_part", "win_unpart")
def _window(d: Draw) -> Case:
    n, w0, h0, w = d.size(8), d.size(9), d.size(9), int(d.number(1, 2, 3))
    if d.name == "win_part":
        return d.case(d.f32(n, w0, h0), w=w)
    side = max(w, 1) if w < 100 else 2
    return d.case(d.f32(n, side, side, -(-w0 // side) * -(-h0 // side)), w0=w0, h0=h0, w=w)


@op("get_rel_pos")
def _get_rel_pos(d: Draw) -> Case:
    n = d.size(9)
    return d.case(d.t(d.type("f16", "bf16"), d.size(17), 2 * n - 1), qh=n, kh=n)


@op(*both("add_rel_pos"))
def _add_rel_pos(d: Draw) -> Case:
    n, h, w, batch = d.size(4), d.size(4), d.size(4), d.small()
    return d.case(d.f32(n * n, h * w, batch), d.f32(n, h, w, batch), d.f32(n, h, w, batch))


@op("ssm_conv")
def _ssm_conv(d: Draw) -> Case:
    taps, inner = d.rng.randint(1, 4), d.size(17)
    return d.case(d.f32(taps - 1 + d.size(9), inner, d.small()), d.f32(taps, inner))


@op("ssm_scan")
def _ssm_scan(d: Draw) -> Case:
    state, dim, heads, groups = d.size(17), d.size(5), d.rng.choice((2, 4)), d.rng.choice((1, 2))
    tokens, seqs = d.rng.randint(1, 3), d.rng.choice((1, 2))
    k = int(d.number(1))
    a0 = d.rng.choice((1, state))
    return d.case(
        d.f32(state, dim, heads, seqs + 1), d.f32(dim, heads, tokens, seqs),
        d.f32(heads, tokens, seqs), d.f32(a0, heads), d.f32(state, groups, tokens, seqs),
        d.f32(state, groups, tokens, seqs), d.index(seqs + 1, seqs), K=k,
    )  # fmt: skip


@op("rwkv_wkv6", "gated_linear_attn", "rwkv_wkv7")
def _wkv(d: Draw) -> Case:
    s, heads, seqs = d.rng.choice((64, 64, 32, 5)), d.small(), d.rng.choice((1, 2))
    if s == 64:
        heads = min(heads, 2)
    tokens = seqs * d.rng.randint(0 if d.wild else 1, 2)
    count = {"rwkv_wkv6": 5, "gated_linear_attn": 4}.get(d.name, 6)
    x = [d.f32(s, heads, tokens) for _ in range(count)]
    if d.name == "rwkv_wkv6":
        x[3] = d.f32(s, heads)
    numbers: dict[str, object] = {"scale": 0.5} if d.name == "gated_linear_attn" else {}
    return d.case(*x, d.f32(s * s * heads, seqs), **numbers)


@op("gated_delta_net")
def _gated_delta_net(d: Draw) -> Case:
    s, heads = d.size(17), d.rng.choice((1, 2, 4))
    seqs, tokens = d.rng.choice((1, 2)), d.rng.randint(1, 3)
    of_qk = d.rng.choice((1, heads))
    other = s + (d.wild and d.rng.choice((-1, 0, 1)))
    q, k = d.f32(other, of_qk, tokens, seqs), d.f32(other, of_qk, tokens, seqs)
    g = d.f32(d.rng.choice((1, s)), heads, tokens, seqs)
    return d.case(
        q, k, d.f32(s, heads, tokens, seqs), g, d.f32(1, heads, tokens, seqs),
        d.f32(s, s, heads, seqs), K=d.rng.choice((1, 1, tokens)),
    )  # fmt: skip


@op("lightning_indexer")
def _lightning_indexer(d: Draw) -> Case:
    keys = d.type(*FLOAT, *QUANTIZED)
    n, heads, tokens, n_kv, streams = d.row(keys), d.small(), d.size(5), d.size(17), d.small()
    return d.case(
        d.f32(n, heads, tokens, streams), d.t(keys, n, 1, n_kv, streams),
        d.f32(heads, tokens, 1, streams), d.t("f16", n_kv, tokens, 1, d.rng.choice((1, streams))),
    )  # fmt: skip


@op("dsv4_hc_comb")
def _hc_comb(d: Draw) -> Case:
    return d.case(d.f32(24, d.size(8)), d.f32(3), d.f32(24), eps=1e-6, n_iter=int(d.number(1, 3)))


@op("dsv4_hc_pre", "dsv4_hc_pre_gated")
def _hc_pre(d: Draw) -> Case:
    n, hc, tokens = d.size(), d.small(), d.size(5)
    if d.name == "dsv4_hc_pre":
        return d.case(d.f32(n, hc, tokens), d.f32(hc, tokens))
    return d.case(d.f32(n, hc, tokens), d.f32(n, hc, tokens), scale=0.5)


@op("dsv4_hc_post")
def _hc_post(d: Draw) -> Case:
    n, hc, tokens = d.size(), d.small(), d.size(5)
    comb = d.f32(hc, hc, tokens) if d.rng.random() < 0.7 else None
    return d.case(d.f32(n, tokens), d.f32(n, hc, tokens), d.f32(hc, tokens), comb)


@op("opt_step_adamw", "opt_step_sgd")
def _opt_step(d: Draw) -> Case:
    ne, adamw = d.shape(), d.name == "opt_step_adamw"
    operands = [d.f32(*ne) for _ in range(4 if adamw else 2)]
    if d.wild and d.rng.random() < 0.5:
        operands[-1] = d.t(d.rng.choice(("i8", "f16")), *ne)
    case = d.case(*operands, d.f32(7 if adamw else 2), writes=(0, 2, 3) if adamw else (0,))
    make = case.call

    def call(ctx, a, *others):
        a.set_param()
        return make(ctx, a, *others)

    case.call = call
    return case
