// The whole axis in one strip, and which part of it the lanes show.

class Minimap {
  constructor(canvas, app) {
    this.canvas = canvas;
    this.app = app;
    this.image = document.createElement('canvas');
    new ResizeObserver(() => this.render()).observe(canvas);
    canvas.addEventListener('pointerdown', event => {
      canvas.setPointerCapture(event.pointerId);
      this.go(event);
    });
    canvas.addEventListener('pointermove', event => {
      if (event.buttons) this.go(event);
    });
  }

  go(event) {
    const lanes = this.app.lanes, box = this.canvas.getBoundingClientRect();
    const at = (event.clientX - box.left - GUTTER - LEFT) / this.scale;
    lanes.view(at - (lanes.width - GUTTER) / lanes.scale / 2, lanes.scale);
  }

  // Draws the picture of all nodes, after a change of theme, filter, axis or stage.
  render() {
    const box = this.canvas.getBoundingClientRect(), ratio = window.devicePixelRatio || 1;
    if (!box.width) return;
    for (const canvas of [this.canvas, this.image]) {
      canvas.width = Math.round(box.width * ratio);
      canvas.height = Math.round(box.height * ratio);
    }
    this.width = box.width;
    this.height = box.height;
    this.ratio = ratio;
    const {app} = this, g = this.image.getContext('2d'), {axis} = app, c = app.lanes.colors;
    g.setTransform(ratio, 0, 0, ratio, 0, 0);
    g.fillStyle = c.paper;
    g.fillRect(0, 0, box.width, box.height);
    const scale = this.scale = (box.width - GUTTER - LEFT - 12) / axis.length;
    const rows = app.plans.flatMap((plan, p) => plan.backends.map((_, b) => `${p} ${b}`));
    const height = (box.height - 8) / rows.length;
    app.plans.forEach((plan, p) => {
      for (let t = 0; t < plan.n; t++) {
        if (!plan.computed[t]) continue;
        const row = rows.indexOf(`${p} ${plan.at(t, app.stage)}`);
        if (row < 0) continue;
        // A split is one block if only its total time is known.
        const color = axis.together(p, t) ? app.laneColor(p, plan.backend[t]) : app.color(p, t);
        g.fillStyle = app.isChanged(p, t) ? c.changed : c[color];
        g.globalAlpha = app.match[p][t] ? 1 : 0.15;
        const x = GUTTER + LEFT + axis.start(p, t) * scale;
        g.fillRect(x, 4 + row * height, Math.max((axis.end(p, t) - axis.start(p, t)) * scale, 0.7), Math.max(height - 1.5, 1));
      }
    });
    this.draw();
  }

  draw() {
    if (!this.width) return;
    const g = this.canvas.getContext('2d'), {lanes} = this.app, {scale} = this, c = lanes.colors;
    g.setTransform(1, 0, 0, 1, 0, 0);
    g.drawImage(this.image, 0, 0);
    g.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    const x = Math.max(GUTTER, GUTTER + LEFT + lanes.x0 * scale);
    const w = Math.min((lanes.width - GUTTER) / lanes.scale * scale, this.width - x - 2);
    g.fillStyle = c.accent;
    g.globalAlpha = 0.12;
    g.fillRect(x, 1, w, this.height - 2);
    g.globalAlpha = 1;
    g.strokeStyle = c.accent;
    g.strokeRect(x + 0.5, 1.5, Math.max(w - 1, 2), this.height - 3);
  }
}
