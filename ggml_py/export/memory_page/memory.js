const data = JSON.parse(document.getElementById("data").textContent);
const el = id => document.getElementById(id);
const [TENSOR, CHUNK, OFFSET, SIZE, PADDED, FIRST, LAST, PLACE_OF, KEPT] = Array(9).keys();
const KINDS = [
  ["input", "host", t => t.flags.includes("input")],
  ["output", "b3", t => t.flags.includes("output")],
  ["copy of another device's", "arrow", t => t.kind === "copy"],
  ["product", "b0", t => /^MUL_MAT|^OUT_PROD/.test(t.op)],
  ["attention", "b2", t => /^FLASH_ATTN|^SOFT_MAX/.test(t.op)],
  ["other op", "b1", () => true],
];
const kindOf = data.tensors.map(t => KINDS.findIndex(kind => kind[2](t)));
const state = { buffer: 0, step: 0, picked: -1, from: 0, to: 1, wanted: "" };

const bytes = n => n < 1024 ? `${n} B` : n < 1048576 ? `${(n / 1024).toFixed(1)} KiB` : `${(n / 1048576).toFixed(2)} MiB`;
const buffer = () => data.buffers[state.buffer];
const nSteps = () => Math.max(1, data.steps.length);
// Where a chunk begins: chunks are drawn one above the other.
const base = chunk => buffer().chunks.slice(0, chunk).reduce((a, b) => a + b, 0);
const matches = t => !state.wanted || `${t.name} ${t.op}`.toLowerCase().includes(state.wanted);
const aliveAt = step => {
  const found = buffer().blocks.filter(b => b[FIRST] <= step && step <= b[LAST]);
  const taken = new Set(found.filter(b => b[FIRST] === step).map(b => b[PLACE_OF]));
  return found.filter(b => !taken.has(b[TENSOR])).sort((a, b) => b[PADDED] - a[PADDED] || a[OFFSET] - b[OFFSET]);
};

function context(canvas) {
  const box = canvas.getBoundingClientRect(), scale = window.devicePixelRatio || 1;
  canvas.width = Math.max(1, Math.round(box.width * scale));
  canvas.height = Math.max(1, Math.round(box.height * scale));
  const c = canvas.getContext("2d");
  c.scale(scale, scale);
  return [c, box.width, box.height];
}
const color = name => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
const x = (step, width) => (step - state.from) / (state.to - state.from) * width;
const stepAt = (px, width) => Math.min(nSteps() - 1, Math.max(0, Math.floor(state.from + px / width * (state.to - state.from))));
const y = (address, height) => height - address / Math.max(1, buffer().size) * height;

function draw() {
  const b = buffer(), colors = KINDS.map(kind => color(kind[1])), paper = color("paper"), pick = color("pick");
  {
    const [c, w, h] = context(el("map"));
    for (const block of b.blocks) {
      const left = x(block[FIRST], w), right = x(block[LAST] + 1, w);
      if (right < 0 || left > w) continue;
      const at = base(block[CHUNK]) + block[OFFSET], top = y(at + block[PADDED], h), bottom = y(at, h);
      c.globalAlpha = matches(data.tensors[block[TENSOR]]) ? 1 : 0.12;
      c.fillStyle = colors[kindOf[block[TENSOR]]];
      c.fillRect(left, top, Math.max(0.7, right - left), Math.max(0.7, bottom - top));
      c.globalAlpha = 1;
      const picked = block[TENSOR] === state.picked;
      if (picked || (right - left > 6 && bottom - top > 4)) {
        c.strokeStyle = picked ? pick : paper;
        c.lineWidth = picked ? 2 : 0.7;
        c.strokeRect(left, top, right - left, bottom - top);
      }
    }
    c.strokeStyle = pick;
    c.lineWidth = 1;
    for (const edge of [x(state.step, w), x(state.step + 1, w)]) {
      c.beginPath(); c.moveTo(edge, 0); c.lineTo(edge, h); c.stroke();
    }
    c.fillStyle = color("soft");
    c.fillText(`${bytes(b.size)}`, 4, 11);
  }
  const [c, w, h] = context(el("curve"));
  c.fillStyle = color("faint");
  c.strokeStyle = color("accent");
  c.beginPath();
  c.moveTo(x(0, w), h);
  b.live.forEach((n, i) => { c.lineTo(x(i, w), y(n, h)); c.lineTo(x(i + 1, w), y(n, h)); });
  c.lineTo(x(b.live.length, w), h);
  c.fill(); c.stroke();
  c.strokeStyle = pick;
  c.beginPath(); c.moveTo(x(state.step + 0.5, w), 0); c.lineTo(x(state.step + 0.5, w), h); c.stroke();
  c.fillStyle = color("soft");
  c.fillText(`alive: at most ${bytes(b.peak)}, at step ${b.peakStep}`, 4, 11);
}

function cell(row, text, key) {
  const td = row.insertCell();
  if (key) {
    const mark = document.createElement("span");
    mark.className = `key key-${key}`;
    td.append(mark);
  }
  td.append(text);
}

function tell() {
  const alive = aliveAt(state.step), n = alive.reduce((sum, b) => sum + b[PADDED], 0);
  el("at").textContent = `Step ${state.step}: ${data.steps[state.step] || "nothing"}. Alive: ${bytes(n)} in ${alive.length} tensor${alive.length === 1 ? "" : "s"}`;
  const table = document.createElement("table");
  for (const block of alive) {
    const t = data.tensors[block[TENSOR]], row = table.insertRow();
    row.dataset.tensor = block[TENSOR];
    row.classList.toggle("picked", block[TENSOR] === state.picked);
    cell(row, `${t.name} (${t.op})`, KINDS[kindOf[block[TENSOR]]][1]);
    cell(row, bytes(block[PADDED]));
  }
  el("alive").replaceChildren(table);
  const block = buffer().blocks.find(b => b[TENSOR] === state.picked), list = document.createElement("dl");
  const put = (what, value) => {
    const dt = document.createElement("dt"), dd = document.createElement("dd");
    dt.textContent = what; dd.textContent = value;
    list.append(dt, dd);
  };
  if (block) {
    const t = data.tensors[block[TENSOR]], after = buffer().blocks.find(b => b[PLACE_OF] === block[TENSOR]);
    put("tensor", t.name);
    put("op", `${t.op} ${t.type} [${t.ne.join(", ")}]${t.backend ? ` on ${t.backend}` : ""}`);
    put("bytes", `${block[SIZE].toLocaleString("en")}${block[PADDED] > block[SIZE] ? `, ${block[PADDED].toLocaleString("en")} with alignment` : ""}`);
    put("offset", `${block[OFFSET].toLocaleString("en")}${buffer().chunks.length > 1 ? ` in chunk ${block[CHUNK]}` : ""}`);
    put("from", `step ${block[FIRST]}: ${data.steps[block[FIRST]] || ""}`);
    put("to", block[KEPT] ? "the end: nothing frees it" : `step ${block[LAST]}: ${data.steps[block[LAST]] || ""}`);
    if (block[PLACE_OF] >= 0) put("in the place of", data.tensors[block[PLACE_OF]].name);
    if (after) put("its place goes to", data.tensors[after[TENSOR]].name);
  } else {
    put("", "Click a tensor to see its place and lifetime.");
  }
  el("chosen").replaceChildren(list);
}

function show() { draw(); tell(); }
function pick(t) { state.picked = t; show(); }
function go(step) {
  state.step = Math.min(nSteps() - 1, Math.max(0, step));
  const width = state.to - state.from;
  if (state.step < state.from || state.step + 1 > state.to) {
    state.from = Math.max(0, Math.min(nSteps() - width, state.step - width / 2));
    state.to = state.from + width;
  }
  show();
}
function choose(i) {
  state.buffer = i; state.picked = -1; state.from = 0; state.to = nSteps();
  go(buffer().peakStep);
}
function blockAt(event) {
  const box = el("map").getBoundingClientRect(), px = event.clientX - box.left, py = event.clientY - box.top;
  const step = stepAt(px, box.width), address = (1 - py / box.height) * buffer().size;
  const hit = b => { const at = base(b[CHUNK]) + b[OFFSET]; return b[FIRST] <= step && step <= b[LAST] && at <= address && address < at + b[PADDED]; };
  return buffer().blocks.filter(hit).sort((a, b) => b[FIRST] - a[FIRST])[0];
}

let drag = null;
for (const id of ["map", "curve"]) {
  el(id).addEventListener("mousedown", event => { drag = { x: event.clientX, from: state.from, moved: false }; });
  el(id).addEventListener("wheel", event => {
    event.preventDefault();
    const box = el(id).getBoundingClientRect(), part = (event.clientX - box.left) / box.width;
    const width = Math.min(nSteps(), Math.max(4, (state.to - state.from) * (event.deltaY > 0 ? 1.25 : 0.8)));
    const middle = state.from + part * (state.to - state.from);
    state.from = Math.max(0, Math.min(nSteps() - width, middle - part * width));
    state.to = state.from + width;
    draw();
  }, { passive: false });
  el(id).addEventListener("click", event => {
    if (drag && drag.moved) return;
    const box = el(id).getBoundingClientRect(), block = id === "map" ? blockAt(event) : null;
    state.step = stepAt(event.clientX - box.left, box.width);
    if (id === "map") state.picked = block ? block[TENSOR] : -1;
    show();
  });
}
window.addEventListener("mousemove", event => {
  if (drag && event.buttons === 1) {
    const width = state.to - state.from, moved = event.clientX - drag.x;
    if (Math.abs(moved) > 3) drag.moved = true;
    if (drag.moved) {
      state.from = Math.max(0, Math.min(nSteps() - width, drag.from - moved / el("map").clientWidth * width));
      state.to = state.from + width;
      draw();
    }
    return;
  }
  const block = event.target === el("map") ? blockAt(event) : null;
  el("tip").hidden = !block;
  if (block) {
    const t = data.tensors[block[TENSOR]];
    el("tip").textContent = `${t.name} (${t.op}), ${bytes(block[SIZE])}, steps ${block[FIRST]}–${block[LAST]}`;
    el("tip").style.left = `${Math.min(window.innerWidth - 300, event.clientX + 12)}px`;
    el("tip").style.top = `${event.clientY + 14}px`;
  }
});
window.addEventListener("keydown", event => {
  if (event.target === el("search") || event.target === el("buffer")) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  const keys = {
    ArrowLeft: () => go(state.step - 1), ArrowRight: () => go(state.step + 1), Home: () => go(0), End: () => go(nSteps() - 1),
    p: () => go(buffer().peakStep), 0: () => choose(state.buffer), d: theme, "/": () => el("search").focus(),
  };
  if (keys[event.key] && !event.ctrlKey && !event.metaKey) { event.preventDefault(); keys[event.key](); }
});
function theme() {
  const root = document.documentElement;
  root.dataset.theme = root.dataset.theme === "dark" ? "light" : "dark";
  draw();
}
el("theme").addEventListener("click", theme);
el("to-peak").addEventListener("click", () => go(buffer().peakStep));
el("whole").addEventListener("click", () => choose(state.buffer));
el("buffer").addEventListener("change", event => choose(event.target.selectedIndex));
el("toolbar").addEventListener("submit", event => event.preventDefault());
el("search").addEventListener("input", event => {
  state.wanted = event.target.value.trim().toLowerCase();
  const n = buffer().blocks.filter(b => matches(data.tensors[b[TENSOR]])).length;
  el("found").textContent = state.wanted ? `${n} found` : "";
  draw();
});
el("alive").addEventListener("click", event => {
  const row = event.target.closest("tr[data-tensor]");
  if (row) pick(+row.dataset.tensor);
});
window.addEventListener("resize", draw);

for (const b of data.buffers) el("buffer").add(new Option(`${b.name}, ${bytes(b.size)}`));
for (const [name, key] of KINDS) {
  const span = document.createElement("span"), mark = document.createElement("i");
  mark.className = `key-${key}`;
  span.append(mark, name);
  el("legend").append(span);
}
if (data.note) el("legend").append(data.note);
if (matchMedia("(prefers-color-scheme: dark)").matches) document.documentElement.dataset.theme = "dark";
if (data.buffers.length) choose(0);
window.memoryPage = { data, state, go, pick, choose, aliveAt };
