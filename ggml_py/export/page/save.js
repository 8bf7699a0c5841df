// Files of what is shown: the lanes as SVG or PNG, the table as CSV.

// Takes the calls that draw on a canvas and writes them down as SVG.
class SvgContext {
  constructor(measuring) {
    this.measuring = measuring;
    this.parts = [];
    this.open = [];      // how many groups each save() has opened
    this.saved = [];
    this.path = '';
    this.n = 0;
    Object.assign(this, {fillStyle: '#000', strokeStyle: '#000', lineWidth: 1, globalAlpha: 1, font: FONT, textAlign: 'left', lineJoin: 'miter'});
  }

  text(width, height) {
    return `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}">${this.parts.join('')}</svg>\n`;
  }

  put(tag, attributes, text) {
    const told = Object.entries(attributes).map(([key, value]) => ` ${key}="${escaped(typeof value === 'number' ? Math.round(value * 100) / 100 : value)}"`).join('');
    this.parts.push(text === undefined ? `<${tag}${told}/>` : `<${tag}${told}>${escaped(text)}</${tag}>`);
  }
  filled() { return {fill: this.fillStyle, ...this.globalAlpha < 1 && {'fill-opacity': this.globalAlpha}}; }
  stroked() { return {fill: 'none', stroke: this.strokeStyle, 'stroke-width': this.lineWidth, 'stroke-linejoin': this.lineJoin, ...this.globalAlpha < 1 && {'stroke-opacity': this.globalAlpha}}; }

  setTransform() {}   // the picture is in pixels of the page
  measureText(text) {
    this.measuring.font = this.font;
    return this.measuring.measureText(text);
  }
  fillRect(x, y, width, height) { if (width > 0 && height > 0) this.put('rect', {x, y, width, height, ...this.filled()}); }
  strokeRect(x, y, width, height) { this.put('rect', {x, y, width: Math.max(width, 0), height: Math.max(height, 0), ...this.stroked()}); }
  beginPath() { this.path = ''; }
  to(letter, ...numbers) { this.path += letter + numbers.map(n => Math.round(n * 100) / 100).join(' '); }
  moveTo(x, y) { this.to('M', x, y); }
  lineTo(x, y) { this.to('L', x, y); }
  bezierCurveTo(...points) { this.to('C', ...points); }
  rect(x, y, width, height) { this.to('M', x, y, x + width, y, x + width, y + height, x, y + height); this.path += 'Z'; }
  fill() { this.put('path', {d: this.path, ...this.filled()}); }
  stroke() { this.put('path', {d: this.path, ...this.stroked()}); }
  written(text, x, y, look) {
    const weight = this.font.startsWith('600') ? {'font-weight': 600} : {}, anchor = {right: 'end', center: 'middle'}[this.textAlign] || 'start';
    this.put('text', {x, y, 'font-size': 12, 'font-family': this.font.replace(/^.*?px /, ''), 'dominant-baseline': 'central', 'text-anchor': anchor, ...weight, ...look}, text);
  }
  fillText(text, x, y) { this.written(text, x, y, this.filled()); }
  strokeText(text, x, y) { this.written(text, x, y, this.stroked()); }
  save() {
    this.saved.push({...this, parts: undefined});
    this.open.push(0);
  }
  clip() {
    this.n++;
    this.parts.push(`<clipPath id="clip${this.n}"><path d="${this.path}"/></clipPath><g clip-path="url(#clip${this.n})">`);
    this.open[this.open.length - 1]++;
  }
  restore() {
    this.parts.push('</g>'.repeat(this.open.pop()));
    const {fillStyle, strokeStyle, lineWidth, globalAlpha, font, textAlign, lineJoin} = this.saved.pop();
    Object.assign(this, {fillStyle, strokeStyle, lineWidth, globalAlpha, font, textAlign, lineJoin});
  }
}

// Text in XML, which cannot have most control characters and halves of surrogate pairs.
function escaped(value) {
  return String(value).toWellFormed().replace(/[\x00-\x08\x0b-\x1f\x7f-\x9f\ufffe\uffff]/g, '\ufffd')
    .replace(/[&<>"']/g, letter => `&#${letter.charCodeAt(0)};`);
}

// As files/foreign.py: spreadsheets compute text that begins like a formula, so it gets an apostrophe.
function csvCell(value) {
  const text = typeof value === 'string' && /^[=+\-@\t\r\n＝＋－＠]/.test(value) ? `'${value}` : String(value);
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

Object.assign(App.prototype, {
  // The lanes as they are shown.
  lanesSvg() {
    const {lanes} = this, {context} = lanes;
    const svg = lanes.context = new SvgContext(context);
    try {
      lanes.draw();
    } finally {
      lanes.context = context;
    }
    return svg.text(lanes.width, lanes.height);
  },

  // The rows of the table that the filters leave, in its order. Numbers are exact.
  tableCsv() {
    const {columns, rows} = this.table, lines = [columns.map(({title, unit}) => unit ? `${title}_${unit}` : title)];
    for (const {p, t} of rows) lines.push(columns.map(column => {
      const value = column.of(this, p, t);
      return typeof value === 'number' && value < 0 ? '' : value;   // not known
    }));
    return lines.map(line => `${line.map(csvCell).join(',')}\n`).join('');
  },

  saves() {
    const made = {
      svg: ['lanes.svg', async () => new Blob([this.lanesSvg()], {type: 'image/svg+xml'})],
      png: ['lanes.png', () => new Promise(done => this.lanes.canvas.toBlob(done))],
      csv: ['nodes.csv', async () => new Blob([this.tableCsv()], {type: 'text/csv'})],
    };
    for (const [kind, [name, make]] of Object.entries(made)) this.get(`save-${kind}`).onclick = async () => {
      const href = URL.createObjectURL(await make());
      el('a', {href, download: name}).click();
      setTimeout(() => URL.revokeObjectURL(href), 60_000);
    };
  },
});
