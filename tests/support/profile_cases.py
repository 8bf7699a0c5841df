"""Builds upstream's op tests live: the tensor that a row of docs/ops/*.csv describes.

Written from tests/test-backend-ops.cpp.
"""

from __future__ import annotations

import functools
import math
import re

import ggml_py as ggml
from ggml_py import enums
from ggml_py.tensors.convert import type_of

ROPE_MROPE, ROPE_VISION = 8, 24
_BETWEEN = re.compile(r",(?=[A-Za-z_])")  # not inside [1,2,3,4]
Value = int | float | str | tuple[int, ...]


def _value(text: str) -> Value:
    if text.startswith("["):
        return tuple(int(number) for number in text[1:-1].split(","))
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    return text.lower()


@functools.cache
def _param(text: str) -> tuple[str, Value]:
    name, equals, value = text.partition("=")
    return name, _value(value) if equals else 1


def parsed(params: str) -> dict[str, Value]:
    """A row's parameters: "type=f32,ne=[4,1,1,1],split" → numbers, tuples, lower-case words."""
    return dict(map(_param, _BETWEEN.split(params)))


def tensor(c, kind, ne):
    return c.new_tensor(kind, *ne)


def view_of(c, t, ne, offset=0):
    """A view of the first `ne` elements of each dimension, with t's strides."""
    return c.view_4d(t, *ne, *t.nb[1:], offset)


def enlarged(c, kind, ne, *factors):
    """A view with these ne in a tensor that is larger by `factors`."""
    return view_of(c, tensor(c, kind, [n * f for n, f in zip(ne, factors, strict=True)]), ne)


def halved(c, t):
    return view_of(c, t, [n // 2 for n in t.ne])


def times(a, b):
    return [x * y for x, y in zip(a, b, strict=True)]


def maybe_permuted(c, kind, ne, permute):
    t = tensor(c, kind, ne)
    return c.permute(t, *permute) if any(permute) else t


# ---- matrices


def mul_mat(c, p):
    m, n, k, per = p["m"], p["n"], p["k"], p["per"]
    bs, all_bs = list(p["bs"]), times(p["bs"], p["nr"])
    if tuple(per) != (0, 1, 2, 3):
        a, b = ([k, m, *bs], [k, n, *all_bs])
        return c.mul_mat(*(
            c.permute(tensor(c, kind, [ne[i] for i in per]), *per)
            for kind, ne in ((p["type_a"], a), (p["type_b"], b))
        ))  # fmt: skip
    if p.get("src_overlap"):
        base = tensor(c, p["type_a"], [2 * k, max(m, n), *all_bs])
        b = view_of(c, base, [k, n, *all_bs], k * base.nb[0])
        return c.mul_mat(view_of(c, base, [k, m, *bs]), b)
    m_v, pad = p.get("m_v", 0), p.get("pad", 0)
    wide = p.get("k_v", 2 * k if p.get("v") else 0)
    row = wide or k
    a = tensor(c, p["type_a"], [row, m_v + (pad != 0) if m_v else m, *bs])
    b = tensor(c, p["type_b"], [row, n, *all_bs])
    if wide:
        a, b = view_of(c, a, [k, m, *bs]), view_of(c, b, [k, n, *all_bs])
    if m_v:
        a = c.view_4d(a, k, m, *bs, a.nb[1], m_v * a.nb[1] + pad, a.nb[3], 0)
    return c.mul_mat(a, b)


def mul_mat_hadamard(c, p):
    out = mul_mat(c, p)
    out.set_hint("src0_is_hadamard")
    return out


def mul_mat_id(c, p):
    n_mats, n_used, m_v = p["n_mats"], p["n_used"], p.get("m_v", 0)
    experts = tensor(c, p["type_a"], [p["k"], m_v or p["m"], n_mats])
    if m_v:
        experts = view_of(c, experts, [p["k"], p["m"], n_mats, 1])
    ids = tensor(c, "i32", [n_mats, p["n"]])
    if n_used != n_mats:
        ids = view_of(c, ids, [n_used, p["n"], 1, 1])
    b = tensor(c, p["type_b"], [p["k"], 1 if p["b"] else n_used, p["n"]])
    out = c.mul_mat_id(experts, b, ids)
    if p.get("amax", 1.0) > 65504:
        out.set_prec_src("f32")
    return out


def out_prod(c, p):
    n, k, all_bs = p["n"], p["k"], times(p["bs"], p["nr"])
    a = tensor(c, p["type_a"], [p["m"], k, *p["bs"]])
    if p["trans_b"]:
        return c.out_prod(a, c.transpose(tensor(c, p["type_b"], [k, n, *all_bs])))
    return c.out_prod(a, tensor(c, p["type_b"], [n, k, *all_bs]))


# ---- attention


def flash_attn_ext(c, p):
    type_k = p.get("type_K", p.get("type_KV"))
    type_v, permute = p.get("type_V", type_k), p["permute"]
    nh, nb, kv, (nr2, nr3) = p["nh"], p["nb"], p["kv"], p["nr23"]

    def padded(size, kind):
        block = ggml.lib.ggml_blck_size(type_of(kind))
        return -(-size // block) * block

    def made(kind, ne, as_view):
        before = [0, 0, 0, 0]
        for i in range(4):
            before[permute[i]] = ne[i]
        t = enlarged(c, kind, before, 1, 2, 1, 1) if as_view else tensor(c, kind, before)
        return t if tuple(permute) == (0, 1, 2, 3) else c.permute(t, *permute)

    hsk, hsv = padded(p["hsk"], type_k), padded(p["hsv"], type_v)
    q = made("f32", [hsk, nb, nh * nr2, nr3], False)
    k = made(type_k, [hsk, kv, nh, nr3], p.get("kv_view", 1))
    if p.get("v_is_view_of_k"):
        v = view_of(c, k, [hsv, kv, nh, nr3])
    else:
        v = made(type_v, [hsv, kv, nh, nr3], p.get("kv_view", 1))
    mask = tensor(c, "f16", [kv, nb, 1, nr3]) if p["mask"] else None
    softcap = p["logit_softcap"]
    out = c.flash_attn_ext(q, k, v, mask, 1 / math.sqrt(p["hsk"]), p["max_bias"], softcap)
    if p.get("sinks"):
        out.add_sinks(tensor(c, "f32", [q.ne[2]]))
    if p.get("n_kv_max"):
        out.set_n_kv_max(p["n_kv_max"])
    out.set_prec("f32" if p["prec"] == "f32" else 0)
    return out


def soft_max(c, p):
    ne, (nr2, nr3) = p["ne"], p.get("nr23", (1, 1))
    a = tensor(c, p["type"], times(ne, (1, 1, nr2, nr3)))
    mask = tensor(c, p["m_prec"], ne) if p["mask"] else None
    make = c.soft_max_ext_inplace if p.get("inplace") else c.soft_max_ext
    out = make(a, mask, p["scale"], p["max_bias"])
    if p.get("sinks"):
        out.add_sinks(tensor(c, "f32", [a.ne[2]]))
    return out


def rope(c, p, forward=True):
    ne, n_dims, mode = p["ne_a"], p["n_dims"], p["mode"]
    if p["v"] & 1:
        a = enlarged(c, p["type"], ne, 2, 4, 3, 1)
    elif p["v"] == 2:
        whole = tensor(c, p["type"], times(ne, (2, 1, 1, 1)))
        a = view_of(c, whole, ne, ne[0] * whole.nb[0])
    else:
        a = tensor(c, p["type"], ne)
    multi = mode & ROPE_MROPE
    pos = tensor(c, "i32", [ne[2] * (4 if multi else 1)])
    freq = tensor(c, "f32", [n_dims // 2]) if p["ff"] else None
    scales = (0, 10000.0, p["fs"], p["ef"], p["af"], 1.0, 1.0)
    end = ("_inplace" if p.get("inplace") else "") if forward else "_back"
    if not multi:
        out = getattr(c, f"rope_ext{end}")(a, pos, freq, n_dims, mode, *scales)
    else:
        vision = mode == ROPE_VISION
        part = n_dims // (4 if vision else 3)
        sections = [part, part, 0 if vision else part, 0]
        dims = n_dims // 2 if vision else n_dims
        out = getattr(c, f"rope_multi{end}")(a, pos, freq, dims, sections, mode, *scales)
    if p.get("n_offs"):
        out.set_rope_offset(p["n_offs"])
    return out


# ---- element by element


def binary(name):
    def build(c, p):
        ne, kind = p["ne"], p["type"]
        kind_b = p.get("type_b", kind)
        a = tensor(c, kind, times(ne, p["nr"]))
        if p.get("src_overlap"):
            part = [*ne[:3], 2 * (ne[3] // 3)]
            return getattr(c, name)(view_of(c, a, part), view_of(c, a, part, ne[3] // 3 * a.nb[3]))
        if p.get("perm1"):
            turn = (1, 2, 0, 3)
            b = c.permute(tensor(c, kind_b, [ne[i] for i in turn]), *turn)
        else:
            b = tensor(c, kind_b, ne)
        return getattr(c, name)(a, b)

    return build


def unary(name):
    def build(c, p):
        ne = p["ne_a"] if "ne_a" in p else p["ne"]
        kind = p["type"]
        a = enlarged(c, kind, ne, 3, 2, 5, 4) if p.get("v") else tensor(c, kind, ne)
        if name == "XIELU":
            return c.xielu(a, 4.0, 20.0, 0.5, 1e-7)
        return c.unary(a, name.lower())

    return build


def glu(name):
    def build(c, p):
        ne, grow = p["ne_a"], (3 if p["v"] else 1)
        a = enlarged(c, p["type"], ne, grow, 1, 1, 1) if p["v"] else tensor(c, p["type"], ne)
        b = enlarged(c, p["type"], ne, grow, 1, 1, 1) if p["v"] else tensor(c, p["type"], ne)
        if name == "SWIGLU_OAI":
            return c.swiglu_oai(a, b, p["alpha"], p["limit"])
        if name == "SWIGLU_CLAMP":
            return c.swiglu_clamp(a, b, p["limit"])
        if p.get("split"):
            return c.glu_split(a, b, name.lower())
        return c.glu(a, name.lower(), bool(p["swapped"]))

    return build


def of_one(method, *names):
    """Ops with one source, whose other arguments are in the row under these names."""
    return lambda c, p: getattr(c, method)(tensor(c, p["type"], p["ne"]), *(p[n] for n in names))


def scale(c, p):
    make = c.scale_bias_inplace if p.get("inplace") else c.scale_bias
    return make(tensor(c, p["type"], p["ne"]), p["scale"], p.get("bias", 0.0))


def norm(name):
    def build(c, p):
        ne, kind = p["ne"], p["type"]
        if p.get("noncontig_rows"):
            a = c.permute(tensor(c, kind, [ne[1], ne[0], *ne[2:]]), 1, 0, 2, 3)
        else:
            a = tensor(c, kind, ne)
        if p.get("v"):
            a = halved(c, a)
        return getattr(c, f"{name}_inplace" if p.get("inplace") else name)(a, p.get("eps", 1e-12))

    return build


def add_id(c, p):
    n_experts, n_used, n = p["n_experts"], p["n_experts_used"], p["n_token"]
    ids = tensor(c, "i32", [n_experts, n])
    if n_used != n_experts:
        ids = view_of(c, ids, [n_used, n, 1, 1])
    a = tensor(c, p["type_a"], [p["n_embd"], n_used, n])
    return c.add_id(a, tensor(c, p["type_b"], [p["n_embd"], n_experts]), ids)


# ---- rows, copies, layouts


def get_rows(c, p):
    n, m, r, batches = p["n"], p["m"], p["r"], [p.get("be1", p.get("b", 1)), p.get("be2", 1)]
    if p.get("vs0"):
        whole = tensor(c, p["type"], [n + p.get("offset_cols", 0), m + 3, *batches])
        offset = p.get("offset_cols", 0) * whole.nb[0] + 3 * whole.nb[1]
        a = view_of(c, whole, [n, m, *batches], offset)
    else:
        a = tensor(c, p["type"], [n, m, *batches])
    rows = tensor(c, "i32", [r + 1 if p["v"] else r, *batches])
    if p["v"]:
        rows = c.view_3d(rows, r // 2, *batches, rows.nb[1], rows.nb[2], rows.nb[0])
    return c.get_rows(a, rows)


def set_rows(c, p):
    ne, (nr2, nr3), r = p["ne"], p["nr23"], p["r"]
    outer = [ne[2] * nr2, ne[3] * nr3]
    dst = tensor(c, p.get("type_dst", p.get("type")), [*ne[:2], *outer])
    src = tensor(c, p.get("type_src", "f32"), [ne[0], r, *outer])
    ids = tensor(c, p.get("type_idx", "i64"), [r, ne[2], ne[3]])
    if p["v"]:
        src = view_of(c, src, [ne[0], r // 2, *outer])
        ids = c.view_3d(ids, r // 2, ne[2], ne[3], ids.nb[1], ids.nb[2], 0)
    return c.set_rows(dst, src, ids)


def cpy(c, p):
    src = maybe_permuted(c, p["type_src"], p.get("ne_src", p.get("ne")), p["permute_src"])
    if p.get("_src_transpose"):
        src = c.transpose(src)
    ne = p.get("ne_dst", src.ne)
    if "dst_alloc" in p:
        return c.cpy(src, view_of(c, tensor(c, p["type_dst"], p["dst_alloc"]), ne))
    return c.cpy(src, maybe_permuted(c, p["type_dst"], ne, p["permute_dst"]))


def cont(c, p):
    a = tensor(c, p["type"], p["ne"])
    if any(p.get("permute", ())):
        return c.cont(c.permute(a, *p["permute"]))
    if p.get("use_view_slice"):
        ne = a.ne
        return c.cont(view_of(c, a, [ne[0], 1, *ne[2:]], a.nb[0] * (ne[1] - 1)))
    return c.cont(c.transpose(a))


def dup(c, p):
    return c.dup(maybe_permuted(c, p["type"], p["ne"], p.get("permute", (0, 0, 0, 0))))


def concat(c, p):
    ne, dim, v = list(p["ne_a"]), p["dim"], p.get("v", 0)
    ne_b = [*ne[:dim], p["ne_b_d"], *ne[dim + 1 :]]

    def made(shape, first, second, inner, outer):
        if v & first:
            return enlarged(c, p["type"], shape, *inner)
        if v & second:
            return enlarged(c, p["type"], shape, *outer)
        return tensor(c, p["type"], shape)

    a = made(ne, 1, 4, (2, 4, 3, 1), (1, 1, 2, 4))
    return c.concat(a, made(ne_b, 2, 8, (3, 2, 4, 1), (1, 1, 3, 2)), dim)


def repeat(c, p):
    target = tensor(c, p["type"], times(p["ne"], p["nr"]))
    return c.repeat(tensor(c, p["type"], p["ne"]), target)


def pad(c, p):
    ne, kind = p["ne_a"], p["type"]
    end = "_circular" if p.get("circular") else ""
    if "pad_0" in p:
        make = getattr(c, f"pad{end}")
        return make(tensor(c, kind, ne), p["pad_0"], p["pad_1"], 0, 0)
    a, form = tensor(c, kind, ne), p.get("tfrm", p.get("v", 0))
    if form == 1:
        a = view_of(c, a, [(n + 1) // 2 for n in a.ne])
    elif form == 2:
        a = c.permute(a, 2, 1, 0, 3)
    sides = [p[f"{side}{i}"] for i in range(4) for side in ("lp", "rp")]
    return getattr(c, f"pad_ext{end}")(a, *sides)


def upscale(c, p):
    mode = p["mode"]
    if isinstance(mode, str):
        name, *flags = f"{mode}|{p['flags']}".split("|") if p.get("flags") else mode.split("|")
        mode = enums.ScaleMode[name.upper()]
        for flag in flags:
            mode |= {"none": 0, "align_corners": 1 << 8, "antialias": 1 << 9}[flag]
    a = tensor(c, p["type"], p["ne"])
    if p.get("transpose"):
        a = c.transpose(a)
    if "ne_tgt" in p:
        return c.interpolate(a, *p["ne_tgt"], mode)
    return c.upscale(a, p["scale_factor"], mode)


def im2col(c, p):
    kernel = tensor(c, p["type_kernel"], p["ne_kernel"])
    steps = [p[n] for n in ("s0", "s1", "p0", "p1", "d0", "d1")]
    image = tensor(c, p["type_input"], p["ne_input"])
    return c.im2col(kernel, image, *steps, bool(p["is_2D"]), p["dst_type"])


def pool_2d(c, p):
    a = tensor(c, p["type_input"], p["ne_input"])
    return c.pool_2d(a, p["pool_type"], *(p[n] for n in ("k0", "k1", "s0", "s1", "p0", "p1")))


def conv_2d(c, p):
    a = tensor(c, p.get("type_kernel", "f32"), p["ne_kernel"])
    b = tensor(c, "f32", p["ne_input"])
    if p["cwhn"]:
        b = c.permute(c.cont(c.permute(b, 1, 2, 0, 3)), 2, 0, 1, 3)
        a = c.permute(c.cont(c.permute(a, 2, 3, 1, 0)), 3, 2, 0, 1)
    names = ("stride0", "stride1", "padding0", "padding1", "dilation0", "dilation1")
    return c.conv_2d_direct(a, b, *(p[n] for n in names))


def argsort(c, p):
    return c.argsort(tensor(c, p["type"], p["ne"]), p["order"])


def ssm_conv(c, p):
    return c.ssm_conv(tensor(c, p["type"], p["ne_a"]), tensor(c, p["type"], p["ne_b"]))


def ssm_scan(c, p):
    state, dim, heads, kind = p["d_state"], p["head_dim"], p["n_head"], p["type"]
    tokens, seqs, groups = p["n_seq_tokens"], p["n_seqs"], p["n_group"]
    s = tensor(c, kind, [state, dim, heads, seqs])
    x = tensor(c, kind, [dim, heads, tokens, seqs])
    dt = tensor(c, kind, [heads, tokens, seqs])
    a = tensor(c, kind, [1 if dim > 1 else state, heads])
    b, out = (tensor(c, kind, [state, groups, tokens, seqs]) for _ in range(2))
    return c.ssm_scan(s, x, dt, a, b, out, tensor(c, "i32", [seqs]), p.get("K", 1))


def gated_delta_net(c, p):
    size, heads, kind = p["head_size"], p["head_count"], p["type"]
    tokens, seqs, all_heads = p["n_seq_tokens"], p["n_seqs"], heads * p["v_repeat"]

    def made(n):
        if p["permuted"]:
            return c.permute(tensor(c, kind, [size, tokens, n, seqs]), 0, 2, 1, 3)
        return tensor(c, kind, [size, n, tokens, seqs])

    q, k = (c.l2_norm(made(heads), 1e-6) for _ in range(2))
    g = tensor(c, kind, [size if p["kda"] else 1, all_heads, tokens, seqs])
    beta = tensor(c, kind, [1, all_heads, tokens, seqs])
    state = tensor(c, kind, [size, size, all_heads, seqs])
    return c.gated_delta_net(q, k, made(all_heads), g, beta, state, p.get("K", 1))


def linear_attention(name):
    def build(c, p):
        size, heads, seqs, kind = p["head_size"], p["head_count"], p["n_seqs"], p["type"]
        tokens = p["n_seq_tokens"] * seqs
        each = [tensor(c, kind, [size, heads, tokens]) for _ in range(6)]
        state = tensor(c, kind, [size * size * heads, seqs])
        if name == "RWKV_WKV7":
            return c.rwkv_wkv7(*each, state)
        if name == "GATED_LINEAR_ATTN":
            return c.gated_linear_attn(*each[:4], state, size**-0.5)
        first = tensor(c, kind, [size, heads])
        return c.rwkv_wkv6(*each[:3], first, each[3], state)

    return build


ELEMENTS = (
    "ABS SGN NEG STEP TANH ELU RELU SIGMOID GELU GELU_QUICK SILU HARDSWISH HARDSIGMOID EXP EXPM1 "
    "SOFTPLUS GELU_ERF XIELU FLOOR CEIL ROUND TRUNC"
)
GLUS = "REGLU GEGLU SWIGLU GEGLU_ERF GEGLU_QUICK SWIGLU_OAI SWIGLU_CLAMP"
CASES = {
    "MUL_MAT": mul_mat,
    "MUL_MAT_HADAMARD": mul_mat_hadamard,
    "MUL_MAT_ID": mul_mat_id,
    "OUT_PROD": out_prod,
    "FLASH_ATTN_EXT": flash_attn_ext,
    "SOFT_MAX": soft_max,
    "ROPE": rope,
    "ROPE_BACK": lambda c, p: rope(c, p, forward=False),
    **{name: binary(name.lower()) for name in ("ADD", "SUB", "MUL", "DIV")},
    **{name: unary(name) for name in ELEMENTS.split(" ")},
    **{name: glu(name) for name in GLUS.split(" ")},
    **{name: of_one(name.lower()) for name in ("SQR", "SQRT", "LOG", "SIN", "COS")},
    **{name: of_one(name.lower()) for name in ("ARGMAX", "CUMSUM", "DIAG")},
    "DIAG_MASK_INF": of_one("diag_mask_inf", "n_past"),
    "SCALE": scale,
    "NORM": norm("norm"),
    "RMS_NORM": norm("rms_norm"),
    "L2_NORM": norm("l2_norm"),
    "GROUP_NORM": of_one("group_norm", "num_groups", "eps"),
    "ADD_ID": add_id,
    "GET_ROWS": get_rows,
    "SET_ROWS": set_rows,
    "CPY": cpy,
    "CONT": cont,
    "DUP": dup,
    "CONCAT": concat,
    "REPEAT": repeat,
    "PAD": pad,
    "UPSCALE": upscale,
    "IM2COL": im2col,
    "POOL_2D": pool_2d,
    "CONV_2D": conv_2d,
    "ARGSORT": argsort,
    "TOP_K": of_one("top_k", "k"),
    "SSM_CONV": ssm_conv,
    "SSM_SCAN": ssm_scan,
    "GATED_DELTA_NET": gated_delta_net,
    **{n: linear_attention(n) for n in ("RWKV_WKV6", "RWKV_WKV7", "GATED_LINEAR_ATTN")},
}
