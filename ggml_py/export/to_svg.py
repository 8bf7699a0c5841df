"""The lanes of a plan as a picture: SVG that a browser shows and that documents take."""

from __future__ import annotations

from itertools import accumulate, groupby

from ..files.foreign import html
from ..trace.answers.shares import headline
from ..trace.names import counted
from ..trace.planned import Planned, format_bytes
from .palette import COLORS, ink, lanes, of_reason
from .rows import NodeRow, copy_rows, node_rows, off_reasons

_LEFT, _ROOM, _RULER = 120, 1280, 22  # pixels: names of lanes, nodes, layers
_LANE, _BETWEEN, _HEAD = 34, 44, 14  # a lane, the room for arrows below it, names of splits
_MOST = 60  # a node
_ALONE = 4  # narrower nodes are drawn together
_NEAR = 8  # arrows that are nearer are one
_LETTER = 6.8
_TEXT, _SOFT, _LINE, _FAINT = "#1b1f27", "#5b6472", "#9aa3b2", "#eceef2"
_VIEW = 0.3  # the width of a node that is not computed


def render(plan: Planned) -> str:
    """A lane for each backend, nodes in graph order, frames around splits, arrows for copies. A
    node's colour is its backend's, or the reason that it is on the host."""
    picture = _Picture(plan)
    parts = [*picture.layers(), *picture.lanes(), *picture.nodes(), *picture.copies()]
    parts += picture.legend()
    size = f'width="{_LEFT + _ROOM}" height="{picture.height}"'
    box = f'viewBox="0 0 {_LEFT + _ROOM} {picture.height}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} {box} font-family="sans-serif" '
        f'font-size="12"><title>{html(headline(plan))}</title>\n'
        + '<rect width="100%" height="100%" fill="#ffffff"/>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


class _Picture:
    def __init__(self, plan: Planned) -> None:
        self.plan, self.rows = plan, node_rows(plan)
        self.names = [backend.name for backend in plan.backends]
        if any(row.backend is None for row in self.rows):
            self.names.append("nowhere")
        self.colors = [*lanes(plan), "none"]
        reasons = off_reasons(plan, self.rows)
        self.off = {node: of_reason(rule.id) for node, rule in reasons.items()}
        widths = [1 if row.is_computed else _VIEW for row in self.rows]
        self.scale = min(_MOST, (_ROOM - 8) / max(sum(widths), 1))
        self.at = [_LEFT + self.scale * x for x in accumulate(widths, initial=0)]
        self.height = _RULER + len(self.names) * (_LANE + _BETWEEN) + 24
        self.used: dict[str, str] = {}  # the legend

    def lane(self, row: NodeRow) -> int:
        return self.names.index("nowhere" if row.backend is None else row.backend)

    def y(self, lane: int) -> int:
        return _RULER + _HEAD + lane * (_LANE + _BETWEEN)

    def color(self, row: NodeRow) -> str:
        return self.off.get(row.node) or self.colors[self.lane(row)]

    def layers(self) -> list[str]:
        parts, labels, free = [], [], 0.0
        for i, (layer, run) in enumerate(groupby(self.rows, key=lambda row: row.layer)):
            x, end = self._span(list(run))
            if layer is None:
                continue
            if i % 2:
                parts.append(_rect(x, 0, end - x, self.height - 24, "#f7f8fa"))
            if x >= free and end - x > 8:
                labels.append(_text(x + 2, 12, f"layer {layer}" if end - x > 56 else f"{layer}"))
                free = x + 22
        return parts + labels

    def lanes(self) -> list[str]:
        parts = []
        for lane, name in enumerate(self.names):
            y, n = self.y(lane), sum(r.is_computed and self.lane(r) == lane for r in self.rows)
            parts.append(_rect(_LEFT, y, _ROOM, _LANE, _FAINT))
            parts.append(_rect(8, y, 4, _LANE, COLORS[self.colors[lane]].light))
            short = name if len(name) <= 14 else f"{name[:13]}…"
            parts.append(_text(18, y + 14, short, _TEXT))
            parts.append(_text(18, y + 28, f"{n} node{'s' * (n != 1)}"))
        return parts

    def nodes(self) -> list[str]:
        parts = []
        for split, run in groupby(self.rows, key=lambda row: row.split):
            mine = list(run)
            x, end = self._span(mine)
            top = self.y(self.lane(mine[0]))
            if end - x > _ALONE:
                parts.append(
                    f'<rect x="{x:.1f}" y="{top - _HEAD}" width="{end - x:.1f}" '
                    f'height="{_HEAD + _LANE}" fill="none" stroke="{_LINE}"/>'
                )
            name = f"#{split} · {len(mine)}"
            if end - x > _LETTER * len(name):
                parts.append(_text(x + 3, top - 3, name))
            alone = self.scale >= _ALONE
            for _key, block in groupby(mine, key=lambda r: (r.node if alone else 0, self.color(r))):
                parts.append(self._block(list(block)))
        return parts

    def _block(self, block: list[NodeRow]) -> str:
        row, (x, end) = block[0], self._span(block)
        name, y, low = (
            self.color(row),
            self.y(self.lane(row)),
            not any(r.is_computed for r in block),
        )
        fill = COLORS[name].light
        self.used[name] = _REASONS.get(name) or row.backend or "on no backend"
        told = f"{row.name or f'node {row.node}'} · {row.op} · {row.backend} {row.cause}"
        if len(block) > 1:
            told = f"nodes {row.node} to {block[-1].node} on {row.backend}"
        y, high = (y + _LANE // 4, _LANE // 2) if low else (y, _LANE)
        drawn = _rect(x, y, max(end - x - (0.5 if end - x > 3 else 0), 0.5), high, fill, told)
        words = row.op if len(block) == 1 else f"{sum(r.is_computed for r in block)}"
        room = int((end - x - 6) / _LETTER / (1.15 if words.isupper() else 1))
        if low or room < min(len(words), 3):
            return drawn
        short = words if len(words) <= room else f"{words[: room - 1]}…"
        return drawn + _text(x + 3, y + _LANE / 2 + 4, short, ink(fill))

    def copies(self) -> list[str]:
        bundles: dict[tuple[str | None, str], list[tuple[float, int, int]]] = {}
        for copy in copy_rows(self.plan):
            x = self.at[self.plan.split_records[copy.split].start]
            drawn = bundles.setdefault((copy.src_backend, copy.dst_backend), [])
            first, nbytes, n = drawn.pop() if drawn and x - drawn[-1][0] < _NEAR else (x, 0, 0)
            drawn.append((first, nbytes + copy.nbytes, n + 1))
        parts, labels = [], []
        for (src, dst), drawn in bundles.items():
            if src is None or src == dst:
                continue
            a, b = self.names.index(src), self.names.index(dst)
            down = a < b
            start, end = (
                self.y(a) + (_LANE if down else -_HEAD),
                self.y(b) + (-_HEAD if down else _LANE),
            )
            for x, nbytes, n in drawn:
                told = f"{counted(n, 'copy', 'copies')}, {format_bytes(nbytes)}"
                parts.append(_arrow(x, start, end, f"{src} → {dst}: {told}"))
                words = format_bytes(nbytes) if n == 1 else told
                labels.append((nbytes, x + 5, end + (-8 if down else 16), words))
        if parts:
            self.used["arrow"] = "copy"
        return parts + _apart(labels)

    def legend(self) -> list[str]:
        parts, x = [], 8.0
        for name, text in self.used.items():
            parts.append(_rect(x, self.height - 18, 10, 10, COLORS[name].light))
            parts.append(_text(x + 14, self.height - 9, text))
            x += 34 + 0.9 * _LETTER * len(text)
        return parts

    def _span(self, rows: list[NodeRow]) -> tuple[float, float]:
        return self.at[rows[0].node], self.at[rows[-1].node + 1]


_REASONS = {
    "off-op": "on the host: the op is not supported",
    "off-weight": "on the host: its weight or cache is in other memory",
    "off-other": "on the host: a neighbour, a pin or a setting decided",
}


def _arrow(x: float, start: int, end: int, told: str) -> str:
    back = end - 5 if end > start else end + 5
    return (
        f'<path d="M{x:.1f} {start}V{end}M{x - 3:.1f} {back}L{x:.1f} {end}L{x + 3:.1f} {back}" '
        f'fill="none" stroke="{COLORS["arrow"].light}" stroke-width="1.5">'
        f"<title>{html(told)}</title></path>"
    )


def _apart(labels: list[tuple[int, float, int, str]]) -> list[str]:
    """Labels of bytes, x, y and words, the largest first, as far as none covers another."""
    placed: list[tuple[float, float, int]] = []
    parts = []
    for _bytes, x, y, words in sorted(labels, key=lambda label: (-label[0], label[1])):
        end = x + _LETTER * len(words) + 6
        if end <= _LEFT + _ROOM and all(
            end < a or b < x or abs(y - at) > 12 for a, b, at in placed
        ):
            placed.append((x, end, y))
            parts.append(_text(x, y, words))
    return parts


def _rect(x: float, y: float, w: float, h: float, fill: str, told: str = "") -> str:
    title = f"<title>{html(told)}</title>" if told else ""
    return f'<rect x="{x:.1f}" y="{y}" width="{w:.1f}" height="{h}" fill="{fill}">{title}</rect>'


def _text(x: float, y: float, text: str, fill: str = _SOFT) -> str:
    return f'<text x="{x:.1f}" y="{y}" fill="{fill}">{html(text)}</text>'
