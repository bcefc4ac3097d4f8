// Replays a trace (docs/json.md); theme.js stands in front. Every number on the page is a sum over the trace's events.

const KINDS = ["read", "write", "atomic"];
const LANES = 32, SECTOR = 32, BANKS = 32, WORD = 4;
const PALETTE = ["#8ecae6", "#ffb703", "#95d5b2", "#f4a3a8", "#cdb4db", "#e9c46a", "#a3b8ff",
                 "#d8e2a8"];
const PAGE = JSON.parse(document.getElementById("page").textContent);
const $ = (id) => document.getElementById(id);
const ORDER = ["Q", "Q8", "K", "K8", "V", "V8", "S", "P", "m", "l", "O_parts",
               "LSE_parts", "O", "LSE", "dO", "delta", "LSE2",
               "dP", "dS", "dQ_sum", "dQ", "dK", "dV"];

// --- words --------------------------------------------------------------------------------------

function exact(n) { return Math.round(n).toLocaleString("en-US"); }
function bytes(n) {
  for (const [unit, size] of [["TB", 1e12], ["GB", 1e9], ["MB", 1e6], ["kB", 1e3]]) {
    const rounded = +(n / size).toPrecision(3);  // 999,600 is 1.00 MB
    if (rounded >= 1) return `${rounded.toPrecision(3)} ${unit}`;
  }
  return `${exact(n)} B`;
}
function span(what, first, count) {  // "rows 64 to 127"
  return count === 1 ? `${what} ${first}` : `${what}s ${first} to ${first + count - 1}`;
}
function times(x) { return x >= 9.95 ? `${Math.round(x)}×` : `${+x.toFixed(2)}×`; }
function make(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === false || value == null) continue;
    if (name === "class") node.className = value;
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children);
  return node;
}

// --- a run --------------------------------------------------------------------------------------

async function unpack(id) {
  const packed = Uint8Array.from(atob($(id).textContent), (c) => c.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  return new Response(stream).json();
}

class Run {
  constructor(data) {
    Object.assign(this, data);
    this.events = [];
    for (const { layout } of this.places) {  // an event's rows count through all heads and pages
      layout.rows *= layout.matrices;
      layout.matrices = 1;
    }
    this.kernels.forEach((kernel, k) => {
      kernel.blocks = data.blocks[k].map(([block, start, rows]) => {
        let now = start;
        return { block, events: rows.map((row) => {
          const [place, stack, kind, how, ticks, size, requests, transfers, read, write, whole,
                 ...corners] = row;
          const rects = [];
          for (let i = 0; i < corners.length; i += 4) rects.push(corners.slice(i, i + 4));
          const event = { kernel: k, block, place, stack, kind, how: data.hows[how], start: now,
                          end: now += ticks, bytes: size, requests, transfers, read, write,
                          whole: !!whole, rects };
          this.events.push(event);
          return event;
        }) };
      });
    });
    this.findFirstValues();
    this.byEnd = [...this.events].sort((a, b) => a.end - b.end);
    this.byStart = [...this.events].sort((a, b) => a.start - b.start);
    this.longest = this.events.reduce((n, e) => Math.max(n, e.end - e.start), 1);
    // A buffer is one row of the table, whichever pass uses it.
    const place = (p) => (ORDER.includes(p.name) ? ORDER.indexOf(p.name) : ORDER.length);
    const global = this.places.filter((p) => p.space === "global");
    this.buffers = new Map();
    for (const p of global.sort((a, b) => place(a) - place(b))) {
      if (!this.buffers.has(p.name)) this.buffers.set(p.name, p);
    }
    this.final = new Counters(this);
    this.final.advance(Infinity);
    this.hottest = this.final.hottest();
  }

  // Marks the writes that only set a buffer to its first values, such as the zeros in O: those of a
  // block that has read nothing before, and whose kernel also reads the buffer; and those of a
  // kernel, where the next kernel that uses the buffer adds to it. Scores are no sums: step 05 turns
  // dP into dS where it lies.
  findFirstValues() {
    const uses = new Map();  // buffer: [[kernel, kinds], ...]
    for (const event of this.events) {
      const place = this.placeOf(event);
      if (place.space !== "global") continue;
      if (!uses.has(place.name)) uses.set(place.name, new Map());
      const kinds = uses.get(place.name);
      if (!kinds.has(event.kernel)) kinds.set(event.kernel, new Set());
      kinds.get(event.kernel).add(event.kind);
    }
    const adds = (kinds) => kinds.has(2) || kinds.has(0) && kinds.has(1);
    this.kernels.forEach((kernel, k) => kernel.blocks.forEach(({ events }) => {
      let reads = false;
      for (const event of events) {
        const place = this.placeOf(event);
        if (place.space !== "global") continue;
        reads ||= event.kind !== 1;
        if (SQUARE.test(place.name)) continue;
        const kernels = [...uses.get(place.name)].sort(([a], [b]) => a - b);
        const at = kernels.findIndex(([other]) => other === k), [, own] = kernels[at];
        event.initial = event.kind === 1 && (adds(own) ? !reads
          : own.size === 1 && at + 1 < kernels.length && adds(kernels[at + 1][1]));
      }
    }));
  }

  // What a place in shared memory has got from an event's rows of device memory, in words. Where the
  // event filled several stages of a ring, each has its share of the rows: `part` of `parts`.
  held(place, from, part = 0, parts = 1) {
    if (!from || !from.rects.length) return { short: "computed", long: COMPUTED };
    const { name, layout } = this.placeOf(from);
    let [row, rows] = from.rects[0];
    if (layout.rows === 1) return { short: name, long: name };
    if (parts > 1 && rows * this.problem.d === parts * place.layout.columns) {
      rows /= parts;
      row += part * rows;
    }
    if (from.rects.length > 1) return { short: name, long: name };
    const numbers = rows === 1 ? `${row}` : `${row}–${row + rows - 1}`;
    // A copy that fills the tiles of several warps: which rows are whose, it does not say.
    const some = rows * layout.columns > place.layout.rows * place.layout.columns;
    return { short: (some ? "of " : "") +
                    (place.name === name ? rows === 1 ? "row " : "rows " : `${name} `) + numbers,
             long: `${some ? "some of " : ""}${name}, ${span("row", row, rows)}`, name, row, rows, some };
  }

  // What an event reads in shared memory: of all stages that it touches.
  heldBy(event, holds) {
    const place = this.placeOf(event), stages = new Set();
    for (const [row, rows] of this.isRing(place) ? event.rects : [[0, 1]]) {
      for (let stage = row; stage < row + rows; ++stage) stages.add(stage);
    }
    const found = [...stages].map((stage) => holds.get(`${event.place}/${stage}`)).filter((h) => h);
    if (!found.length) return place.name;
    const [{ name }] = found;
    if (!name || found.some((h) => h.name !== name)) return found[0].long;
    const parts = [];
    for (const { row, rows } of found.sort((a, b) => a.row - b.row)) {
      const last = parts.at(-1);
      if (last && row <= last.row + last.rows) last.rows = Math.max(last.rows, row + rows - last.row);
      else parts.push({ row, rows });
    }
    const some = found.some((h) => h.some) ? "some of " : "";
    return `${some}${name}, ${parts.map((part) => span("row", part.row, part.rows)).join(" and ")}`;
  }

  // What one block does, kernel by kernel; where others finish later, a step of its own.
  steps(follow) {
    const steps = [{ time: -1, event: null, kernel: 0 }];
    this.kernels.forEach((kernel, k) => {
      const block = kernel.blocks[Math.min(follow, kernel.blocks.length - 1)];
      let now = kernel.start;
      for (const event of block.events) {
        if (event.how === "mbarrier") continue;  // a wait, and nothing that a picture could show
        steps.push({ time: event.end, event, kernel: k });
        now = event.end;
      }
      if (kernel.start + kernel.ticks > now) {
        steps.push({ time: kernel.start + kernel.ticks, event: null, kernel: k });
      }
    });
    return steps;
  }

  blockName(kernel, block) {
    const [x, y] = this.kernels[kernel].grid;
    return `(${block % x},${Math.floor(block / x) % y},${Math.floor(block / x / y)})`;
  }

  // "quantise block", and "quantise block → K8" where several kernels have one name.
  kernelName(k) {
    const short = (kernel) => kernel.name.replace(/^step\w+::/, "").replace(/<.*/, "")
      .replace(/_kernel$/, "").replaceAll("_", " ");
    const name = short(this.kernels[k]);
    if (this.kernels.filter((kernel) => short(kernel) === name).length < 2) return name;
    const sums = new Map();
    for (const { events } of this.kernels[k].blocks) {
      for (const e of events) {
        const place = this.placeOf(e);
        if (place.space !== "global" || e.kind === 0) continue;
        sums.set(place.name, (sums.get(place.name) || 0) + e.bytes);
      }
    }
    const [most] = [...sums].sort((a, b) => b[1] - a[1]);
    return most ? `${name} → ${most[0]}` : name;
  }

  placeOf(event) { return this.places[event.place]; }

  // A ring of stages, or a tile without rows of its own: its columns are whole tiles.
  isRing(place) { return place.space === "shared" && place.layout.columns > 4 * this.problem.d; }

  // "K, rows 64 to 127": of a buffer in device memory.
  elements(event) {
    const { name, layout } = this.placeOf(event);
    if (!event.rects.length) return name;
    const [row, rows, column, columns] = event.rects[0];
    const more = event.rects.length - 1;
    if (!more && rows === layout.rows && columns === layout.columns) return `all of ${name}`;
    let text = event.whole ? name : `parts of ${name}`;
    if (layout.rows > 1) text += `, ${span("row", row, rows)}`;
    const what = layout.rows > 1 ? "column" : layout.element_bytes > 1 ? "element" : "byte";
    if (columns < layout.columns) text += `, ${span(what, column, columns)}`;
    return text + (more ? ` and ${more} more place${more > 1 ? "s" : ""}` : "");
  }

  // Of a store to shared memory: the tile of device memory that it holds from now on.
  source(event) {
    if (event.how === "stmatrix") return null;  // it stores registers
    const all = this.kernels[event.kernel].blocks.find((b) => b.block === event.block).events;
    const at = all.indexOf(event), own = this.stacks[event.stack];
    const before = all.slice(Math.max(0, at - 60), at).reverse().filter((other) =>
      other.kind === 0 && this.placeOf(other).space === "global" &&
      (other.bytes <= event.bytes || event.how === "cp.async"));  // of it: other warps' tiles
    const from = (depth) => before.find((other) =>
      own.length > depth && this.stacks[other.stack].slice(depth).join() === own.slice(depth).join());
    return from(0) || from(1) || null;  // the same line; else another of the same function's call
  }
}

// --- what has moved so far ----------------------------------------------------------------------

const COMPUTED = "computed values";
const SQUARE = /^d?[SP]$/;  // N x N
const BIN = 8;  // elements of a cell of the heat

class Counters {
  constructor(run) {
    this.run = run;
    this.reset();
  }

  reset() {
    this.time = -1;
    this.next = 0;
    this.buffers = new Map();
    this.initial = new Map();  // bytes written before anything was read
    this.heat = new Map();
    this.shared = [0, 0, 0];
    this.l2 = [0, 0, 0];
    this.hbm = [0, 0];
    for (const [name, place] of this.run.buffers) {
      this.buffers.set(name, [0, 0, 0]);
      const { rows, columns } = place.layout;
      const cells = Math.ceil(rows / BIN) * Math.ceil(columns / BIN);
      this.heat.set(name, [new Float32Array(cells), new Float32Array(cells)]);
    }
  }

  advance(time) {
    if (time < this.time) this.reset();
    const events = this.run.byEnd;
    while (this.next < events.length && events[this.next].end <= time) this.add(events[this.next++]);
    this.time = time;
  }

  add(event) {
    const place = this.run.placeOf(event);
    if (place.space === "shared") {
      this.shared[event.kind] += event.bytes;
      return;
    }
    this.buffers.get(place.name)[event.kind] += event.bytes;
    if (event.initial) {
      this.initial.set(place.name, (this.initial.get(place.name) || 0) + event.bytes);
    }
    this.l2[event.kind] += SECTOR * event.transfers;
    this.hbm[0] += event.read;
    this.hbm[1] += event.write;
    const { rows, columns, element_bytes: size } = place.layout;
    const area = event.rects.reduce((n, r) => n + r[1] * r[3], 0);
    const each = area ? event.bytes / size / area : 0;
    const across = Math.ceil(columns / BIN), down = Math.ceil(rows / BIN);
    const heat = this.heat.get(place.name)[event.kind === 0 ? 0 : 1];
    for (const [row, high, column, wide] of event.rects) {
      for (let i = Math.floor(row / BIN); i <= (row + high - 1) / BIN && i < down; ++i) {
        const inRow = Math.min(row + high, i * BIN + BIN, rows) - Math.max(row, i * BIN);
        const partOfRow = inRow / (Math.min(rows, i * BIN + BIN) - i * BIN);
        for (let j = Math.floor(column / BIN); j <= (column + wide - 1) / BIN; ++j) {
          const end = Math.min(columns, j * BIN + BIN);
          const inColumn = Math.min(column + wide, end) - Math.max(column, j * BIN);
          heat[i * across + j] += each * partOfRow * inColumn / (end - j * BIN);
        }
      }
    }
  }

  // Of what the picture shows: not of a few scales.
  hottest() {
    let most = 1;
    for (const [name, [read, write]] of this.heat) {
      if (this.run.buffers.get(name).layout.rows === 1) continue;
      for (let i = 0; i < read.length; ++i) most = Math.max(most, read[i] + write[i]);
    }
    return most;
  }

  requested() {
    const sum = [0, 0, 0];
    for (const b of this.buffers.values()) b.forEach((n, kind) => (sum[kind] += n));
    return sum;
  }
}

const total = (all) => all.reduce((a, b) => a + b, 0);

// --- the picture of device memory ---------------------------------------------------------------

let colours = {};
function readColours() {
  const probe = document.body.appendChild(make("i"));  // a variable has no value of one theme
  for (const name of ["bg", "panel", "cell", "line", "fg", "dim", "read", "write", "atomic",
                      "heat-low", "heat-high"]) {
    probe.style.color = `var(--${name})`;
    colours[name] = getComputedStyle(probe).color;
  }
  probe.remove();
}
const channel = (rgb, i) => +rgb.match(/\d+/g)[i];
function heatColour(x, hottest) {
  const share = Math.log1p(x) / Math.log1p(Math.max(hottest, 4));
  const mix = (i) => Math.round(channel(colours["heat-low"], i) * (1 - share) +
                                channel(colours["heat-high"], i) * share);
  return `rgb(${mix(0)},${mix(1)},${mix(2)})`;
}
const kindColour = (kind) => colours[KINDS[kind]];

// Rows are queries: Q to the left, O to the right. Columns are keys: K and V lie on their side.
function arrange(run) {
  const n = run.problem.n * run.problem.h, { nk } = run.problem;  // the rows of all heads
  const boxes = { left: [], squares: [], right: [], top: [], bottom: [] };
  const small = [];
  for (const [name, place] of run.buffers) {
    const { rows, columns } = place.layout;
    const box = { name, rows, columns, turned: false };
    if (SQUARE.test(name) && columns === nk) boxes.squares.push(box);
    else if (/^(d?[KV])8?$/.test(name)) {
      box.turned = true;
      boxes[name[0] === "d" ? "bottom" : "top"].push(box);
    } else if ((rows === n && columns > 1) || name === "O_parts") boxes[/^(Q|dO)/.test(name) ? "left" : "right"].push(box);
    else if (rows === n) boxes.right.push(box);
    else small.push(box);
  }
  boxes.right.sort((a, b) => (a.columns > 1) - (b.columns > 1));
  if (!boxes.squares.length) {
    boxes.squares.push({ name: "S, P", rows: n, columns: nk, ghost: true });
  }
  const order = ["S", "dS", "P", "dP"];
  boxes.squares.sort((a, b) => order.indexOf(a.name) - order.indexOf(b.name));
  if (boxes.squares.length === 1 && !boxes.bottom.length && boxes.top.length > 1) {
    boxes.bottom = boxes.top.filter((b) => b.name[0] === "V");
    boxes.top = boxes.top.filter((b) => b.name[0] !== "V");
  }
  boxes.small = small;
  return boxes;
}

class Picture {
  constructor(canvas, maxHeight) {
    this.canvas = canvas;
    this.maxHeight = maxHeight;
    canvas.tabIndex = 0;
    canvas.setAttribute("role", "img");
    canvas.addEventListener("pointermove", (e) => this.point(e));
    canvas.addEventListener("pointerleave", () => hideTip());
    canvas.addEventListener("focus", () => this.describe());
    canvas.addEventListener("blur", () => hideTip());
  }

  show(run) {
    this.run = run;
    this.plan = arrange(run);
    this.layout();
  }

  // Places of all boxes in pixels.
  layout() {
    const run = this.run, plan = this.plan;
    const label = 17, gap = 14, thin = 9;
    const width = this.canvas.clientWidth || 600;
    const wide = (b) => (b.turned ? b.rows : b.columns);
    const high = (b) => (b.turned ? b.columns : b.rows);
    const columns = [...plan.left, ...plan.squares, ...plan.right];
    const g = this.canvas.getContext("2d");
    g.font = "600 12px system-ui, sans-serif";
    const slot = (b) => Math.max(thin, g.measureText(b.name).width - 5);
    const fixed = columns.filter((b) => wide(b) === 1).reduce((n, b) => n + slot(b), 0) +
                  (columns.length - 1) * gap;
    const elements = columns.reduce((n, b) => n + (wide(b) > 1 ? wide(b) : 0), 0);
    const above = this.stack(plan.top, plan.squares.length), below = this.stack(plan.bottom, 1);
    const deep = (rows) => rows.reduce((n, row) => n + Math.max(...row.map(high)), 0);
    const tall = deep(above) + deep(below) + Math.max(...columns.map(high));
    const lines = above.length + below.length + 1;
    const scale = Math.min((width - fixed - 4) / elements,
                           (this.maxHeight - lines * (label + gap)) / tall);
    this.scale = scale;
    const pixels = (n) => Math.max(n === 1 ? thin : 3, n * scale);
    this.boxes = [];
    const room = (b) => (wide(b) === 1 ? slot(b) : pixels(wide(b)));
    const used = columns.reduce((n, b) => n + room(b), 0) + (columns.length - 1) * gap;
    const start = Math.max(2, (width - used) / 2);
    const put = (b, x, y) => this.boxes.push({ ...b, x, y, w: pixels(wide(b)), h: pixels(high(b)),
                                               room: room(b) });
    const squareAt = [];
    let x = start, y = 0;
    for (const b of columns) {
      if (plan.squares.includes(b)) squareAt.push(x);
      x += room(b) + gap;
    }
    const rowOf = (row) => {
      y += label;
      row.forEach((b, i) => put(b, squareAt[Math.min(i, squareAt.length - 1)], y));
      y += Math.max(...row.map((b) => pixels(high(b)))) + gap;
    };
    above.forEach(rowOf);
    y += label;
    x = start;
    for (const b of columns) {
      put(b, x, y);
      x += room(b) + gap;
    }
    y += Math.max(...columns.map((b) => pixels(high(b)))) + gap;
    below.forEach(rowOf);
    this.height = Math.ceil(y - gap + 4);
    this.width = width;
    const ratio = window.devicePixelRatio || 1;
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(this.height * ratio);
    this.canvas.style.height = `${this.height}px`;
    this.canvas.getContext("2d").setTransform(ratio, 0, 0, ratio, 0, 0);
  }

  // K above S and V above P, else one above the other.
  stack(boxes, across) {
    const rows = [];
    for (let i = 0; i < boxes.length; i += across) rows.push(boxes.slice(i, i + across));
    return rows;
  }

  rect(box, [row, rows, column, columns]) {
    const unitX = box.w / (box.turned ? box.rows : box.columns);
    const unitY = box.h / (box.turned ? box.columns : box.rows);
    const [left, top, wide, high] = box.turned ? [row, column, rows, columns]
                                               : [column, row, columns, rows];
    return [box.x + left * unitX, box.y + top * unitY, wide * unitX, high * unitY];
  }

  draw(counters, current, others) {
    const g = this.canvas.getContext("2d");
    this.counters = counters;
    this.current = current;
    g.clearRect(0, 0, this.width, this.height);
    g.font = "600 12px system-ui, sans-serif";
    g.textBaseline = "alphabetic";
    for (const box of this.boxes) {
      g.fillStyle = colours.cell;
      g.fillRect(box.x, box.y, box.w, box.h);
      if (!box.ghost) this.drawHeat(g, box, counters);
      g.setLineDash(box.ghost ? [4, 4] : []);
      g.strokeStyle = colours.line;
      g.lineWidth = 1;
      g.strokeRect(box.x + .5, box.y + .5, box.w - 1, box.h - 1);
      g.setLineDash([]);
      const lit = current && this.run.placeOf(current).space === "global" &&
                  this.run.placeOf(current).name === box.name;
      g.fillStyle = box.ghost ? colours.dim : lit ? kindColour(current.kind) : colours.fg;
      if (box.ghost) this.drawGhost(g, box);
      else g.fillText(box.name, box.x, box.y - 5, box.room + 12);
    }
    for (const event of others) this.light(g, event, .16, false);
    if (current) this.light(g, current, .5, true);
  }

  drawHeat(g, box, counters) {
    const heat = counters.heat.get(box.name);
    const across = Math.ceil(box.columns / BIN);
    for (let i = 0; i * BIN < box.rows; ++i) {
      for (let j = 0; j < across; ++j) {
        const x = heat[0][i * across + j] + heat[1][i * across + j];
        if (x <= 0) continue;
        g.fillStyle = heatColour(x, this.hottest);
        const rows = Math.min(BIN, box.rows - i * BIN), columns = Math.min(BIN, box.columns - j * BIN);
        const [left, top, wide, high] = this.rect(box, [i * BIN, rows, j * BIN, columns]);
        const x0 = Math.round(left), y0 = Math.round(top);
        g.fillRect(x0, y0, Math.max(1, Math.round(left + wide) - x0),
                   Math.max(1, Math.round(top + high) - y0));
      }
    }
  }

  // The tile of scores that the block's latest tiles of Q and K make.
  drawGhost(g, box) {
    g.textAlign = "center";
    g.fillText(box.w > 190 ? "S and P are never in device memory" : "S, P: not stored",
               box.x + box.w / 2, box.y - 5, box.w);
    g.textAlign = "start";
    if (!this.tile || !this.tile.q || !this.tile.k) return;
    const [row, rows] = this.tile.q, [key, keys] = this.tile.k;
    const [x, y, w, h] = this.rect(box, [row, rows, key, keys]);
    g.fillStyle = colours.dim;
    g.globalAlpha = .25;
    g.fillRect(x, y, w, h);
    g.globalAlpha = 1;
    g.setLineDash([3, 3]);
    g.strokeStyle = colours.dim;
    g.strokeRect(x + .5, y + .5, Math.max(1, w - 1), Math.max(1, h - 1));
    g.setLineDash([]);
  }

  light(g, event, alpha, outlined) {
    const place = this.run.placeOf(event);
    if (place.space !== "global") return;
    const box = this.boxes.find((b) => b.name === place.name);
    if (!box) return;
    for (const rect of event.rects) {
      const [x, y, w, h] = this.rect(box, rect);
      g.globalAlpha = alpha;
      g.fillStyle = kindColour(event.kind);
      g.fillRect(x, y, Math.max(1.5, w), Math.max(1.5, h));
      g.globalAlpha = 1;
      if (!outlined) continue;
      g.strokeStyle = kindColour(event.kind);
      g.lineWidth = 2;
      g.strokeRect(x + 1, y + 1, Math.max(1, w - 2), Math.max(1, h - 2));
    }
  }

  point(event) {
    const bounds = this.canvas.getBoundingClientRect();
    const x = event.clientX - bounds.left, y = event.clientY - bounds.top;
    const box = this.boxes.find((b) => x >= b.x && y >= b.y && x < b.x + b.w && y < b.y + b.h);
    if (!box) return hideTip();
    const across = (x - box.x) / box.w, down = (y - box.y) / box.h;
    const row = Math.floor((box.turned ? across : down) * box.rows);
    const column = Math.floor((box.turned ? down : across) * box.columns);
    if (box.ghost) {
      return showTip(event.clientX, event.clientY,
                     `query ${row}, key ${column}: this score exists only in shared memory or registers`);
    }
    const cell = Math.floor(row / BIN) * Math.ceil(box.columns / BIN) + Math.floor(column / BIN);
    const [read, write] = this.counters.heat.get(box.name);
    showTip(event.clientX, event.clientY,
            `${box.name}, row ${row}${box.columns > 1 ? `, column ${column}` : ""}: ` +
            `read ${times(read[cell])}, written ${times(write[cell])} so far ` +
            `(mean of ${box.columns > 1 ? `${BIN} × ${BIN}` : BIN} elements of ${box.rows} × ${box.columns})`);
  }

  describe() {
    const bounds = this.canvas.getBoundingClientRect();
    const text = this.canvas.getAttribute("aria-label");
    if (this.canvas.matches(":focus-visible") && text) showTip(bounds.left, bounds.top + 20, text);
  }
}

function showTip(x, y, text) {
  const tip = $("tip");
  tip.textContent = text;
  tip.hidden = false;
  const { width, height } = tip.getBoundingClientRect();
  const limit = document.documentElement.clientWidth;
  tip.style.left = `${Math.max(4, Math.min(x + 14, limit - width - 6))}px`;
  tip.style.top = `${y > height + 20 ? y - height - 12 : y + 20}px`;
}
function hideTip() { $("tip").hidden = true; }

// --- a block's shared memory --------------------------------------------------------------------

class OnChip {
  constructor(canvas) {
    this.canvas = canvas;
    canvas.setAttribute("role", "img");
    canvas.tabIndex = 0;
    canvas.addEventListener("pointermove", (e) => this.point(e));
    canvas.addEventListener("pointerleave", () => hideTip());
  }

  // A ring of stages is shown stage by stage, a swizzled tile in rows of d.
  shapes(id, d) {
    const place = this.run.places[id], { rows, columns, element_bytes: size } = place.layout;
    const long = columns > 4 * d && columns % d === 0;
    if (!long) return [{ id, stage: -1, rows, columns, title: place.name, bytes: place.bytes }];
    return Array.from({ length: rows }, (_, stage) => ({
      id, stage, rows: columns / d, columns: d, long: columns, bytes: columns * size,
      title: rows > 1 ? `${place.name}, ${stage}` : place.name }));
  }

  show(run, kernel, scale) {
    this.run = run;
    const used = new Set();
    for (const block of run.kernels[kernel].blocks) {
      for (const e of block.events) if (e.how !== "mbarrier") used.add(e.place);
    }
    const width = this.canvas.clientWidth || 500, gap = 14, label = 32;
    const places = [...used].filter((p) => run.places[p].space === "shared")
      .sort((a, b) => run.places[a].offset - run.places[b].offset);
    const shapes = places.flatMap((p) => this.shapes(p, run.problem.d));
    const most = Math.max(1, ...shapes.map((s) => s.rows));
    const fit = Math.min(scale * 1.25, (shapes.length > 10 ? 56 : 120) / Math.min(most, 120),
                         (width - 4) / Math.max(1, ...shapes.map((s) => s.columns)));
    this.boxes = [];
    let x = 2, y = 0, high = 0, before = -1;
    for (const shape of shapes) {
      const w = Math.max(8, shape.columns * fit), h = Math.min(300, Math.max(8, shape.rows * fit));
      const room = Math.max(w, 76);
      const ring = shape.stage >= 0 && shape.id !== before;  // a ring begins a line
      if ((x + room > width || (ring && shapes.length > 6)) && x > 2) {
        [x, y, high] = [2, y + high + label + gap, 0];
      }
      before = shape.id;
      this.boxes.push({ ...shape, x, y: y + label, w, h, room });
      x += room + gap;
      high = Math.max(high, h);
    }
    this.height = this.boxes.length ? Math.ceil(y + high + label + 3) : 0;
    this.width = width;
    this.holds = new Map();
    const ratio = window.devicePixelRatio || 1;
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(this.height * ratio);
    this.canvas.style.height = `${this.height}px`;
    this.canvas.getContext("2d").setTransform(ratio, 0, 0, ratio, 0, 0);
  }

  // The part of a rectangle that lies in a box; null: none does.
  rect(box, [row, rows, column, columns]) {
    if (box.long) {
      if (box.stage < row || box.stage >= row + rows) return null;
      row = Math.floor(column / box.columns);
      rows = Math.max(1, Math.ceil((column + columns) / box.columns) - row);
      [column, columns] = [0, box.columns];
    }
    return [box.x + column * box.w / box.columns, box.y + row * box.h / box.rows,
            columns * box.w / box.columns, rows * box.h / box.rows];
  }

  // `holds`: by place what was stored there last.
  draw(current, holds) {
    const g = this.canvas.getContext("2d");
    g.clearRect(0, 0, this.width, this.height);
    this.holds = holds;
    for (const box of this.boxes) {
      const rects = current && current.place === box.id
        ? current.rects.map((r) => this.rect(box, r)).filter((r) => r) : [];
      const lit = rects.length > 0;
      const held = holds.get(`${box.id}/${Math.max(0, box.stage)}`);
      g.fillStyle = held === undefined ? colours.cell : colours["heat-low"];
      g.fillRect(box.x, box.y, box.w, box.h);
      if (lit) {
        g.fillStyle = kindColour(current.kind);
        g.strokeStyle = kindColour(current.kind);
        for (const [x, y, w, h] of rects) {
          g.globalAlpha = .42;
          g.fillRect(x, y, Math.max(2, w), Math.max(2, h));
          g.globalAlpha = 1;
        }
        g.lineWidth = 2;
        g.strokeRect(box.x, box.y, box.w, box.h);
      } else {
        g.lineWidth = 1;
        g.strokeStyle = colours.line;
        g.strokeRect(box.x + .5, box.y + .5, box.w - 1, box.h - 1);
      }
      g.font = "600 12px system-ui, sans-serif";
      g.fillStyle = lit ? kindColour(current.kind) : colours.fg;
      g.fillText(box.title, box.x, box.y - 18, box.room);
      g.font = "11px system-ui, sans-serif";
      g.fillStyle = colours.dim;
      g.fillText(held === undefined ? "empty" : held.short, box.x, box.y - 5, box.room + 6);
    }
  }

  point(event) {
    const bounds = this.canvas.getBoundingClientRect();
    const x = event.clientX - bounds.left, y = event.clientY - bounds.top;
    const box = (this.boxes || []).find((b) => x >= b.x && y >= b.y - 30 &&
                                        x < b.x + b.room && y < b.y + b.h);
    if (!box) return hideTip();
    const held = this.holds.get(`${box.id}/${Math.max(0, box.stage)}`);
    const name = box.stage >= 0 ? box.title.replace(",", ", stage") : box.title;
    showTip(event.clientX, event.clientY, `${name}: ${box.rows} × ${box.columns}, ` +
            `${exact(box.bytes)} B of shared memory; ${held ? `holds ${held.long}` : "empty"}`);
  }
}

// --- the source line ----------------------------------------------------------------------------

let sources = {};
function codeOf(run, frames, around) {
  const { path, number } = run.lines[frames.at];
  const text = sources[path];
  if (!text) return null;
  const lines = make("pre", { tabindex: 0, "aria-label": `Source of ${path}` });
  for (let i = number - around; i <= number + around; ++i) {
    if (i < 1 || i > text.length) continue;
    const row = make("span", { class: i === number ? frames.mark : i === frames.also ? "at" : null });
    const code = text[i - 1], comment = code.search(/(^|\s)\/\//);
    row.append(make("s", {}, String(i)));
    row.append(comment < 0 ? code || " " : code.slice(0, comment));
    if (comment >= 0) row.append(make("em", {}, code.slice(comment)));
    lines.append(row);
  }
  return [make("p", { class: "file" }, `${path}:${number}${frames.note}`), lines];
}

function showSource(node, run, event) {
  if (!event || !run.stacks[event.stack].length) {
    const text = event ? "The host requested this; no line of a kernel did." :
                         "Press Play, or use the arrow keys.";
    node.replaceChildren(make("p", { class: "dim" }, text));
    return;
  }
  const stack = run.stacks[event.stack];
  const inner = run.lines[stack[0]], outer = run.lines[stack.at(-1)];
  const near = inner.path === outer.path && Math.abs(inner.number - outer.number) <= 4;
  const calls = stack.length > 1 && !near;
  const parts = calls
    ? [...codeOf(run, { at: stack.at(-1), mark: "call", note: " calls" }, 3) || [],
       ...codeOf(run, { at: stack[0], mark: "at", note: "" }, 3) || []]
    : codeOf(run, { at: stack[0], mark: "at", note: "" }, 6) || [];
  node.replaceChildren(...parts);
}

// --- one request of a warp ----------------------------------------------------------------------

function showRequest(node, run, event) {
  if (!event) {
    node.replaceChildren(make("p", { class: "dim" },
      "The 32 lanes of a warp make one request together. Here you see the sectors of 32 bytes, or the " +
      "banks of shared memory, that it touches."));
    return;
  }
  const place = run.placeOf(event);
  const request = run.requests.find((r) => r.place === event.place && r.stack === event.stack &&
                                    r.kind === KINDS[event.kind] && r.how === event.how);
  if (!request) {
    const who = event.how === "TMA" ? "The copy engine (TMA) moves the whole tile; no warp makes a request."
              : event.how === "wgmma" ? "The tensor cores (wgmma) read the whole tile; no warp makes a request."
              : "No warp makes a request for this.";
    node.replaceChildren(make("p", {}, who));
    return;
  }
  const shared = place.space === "shared", size = request.lane_bytes;
  const lanes = make("div", { class: "lanes", "aria-hidden": true });
  const active = request.at.filter((at) => at !== null).length;
  const base = shared ? place.offset : 0;
  const unit = shared ? WORD : SECTOR;
  const places = new Map();  // sector, or bank: words
  request.at.forEach((at, lane) => {
    const cell = make("span", { class: at === null ? "idle" : null }, String(lane));
    if (at !== null) {
      for (let b = base + at; b < base + at + size; b += WORD) {
        const key = shared ? ((b / WORD) % BANKS + BANKS) % BANKS : Math.floor(b / unit);
        if (!places.has(key)) places.set(key, new Set());
        places.get(key).add(Math.floor(b / WORD));
      }
      const first = shared ? (((base + at) / WORD) % BANKS + BANKS) % BANKS : Math.floor(at / unit);
      cell.dataset.key = first;
      cell.title = `lane ${lane}: byte ${at} of ${place.name}`;
    }
    lanes.append(cell);
  });
  const order = [...new Set([...lanes.children].map((c) => c.dataset.key).filter((k) => k))];
  for (const cell of lanes.children) {
    if (!cell.dataset.key) continue;
    cell.style.background = shared
      ? `hsl(${Math.round(+cell.dataset.key * 360 / BANKS)} 62% 74%)`
      : PALETTE[order.indexOf(cell.dataset.key) % PALETTE.length];
  }
  const what = `${active} lanes × ${size} B = ${exact(active * size)} B`;
  const parts = [lanes, make("p", {}, shared
    ? `${what} in ${request.transfers} wavefront${request.transfers > 1 ? "s" : ""}. ` +
      "Below: how many different words each of the 32 banks must deliver."
    : `${what} in ${request.transfers} sector${request.transfers > 1 ? "s" : ""} of 32 B. ` +
      "Lanes of one colour share a sector" + (order.length > PALETTE.length
        ? `; the ${PALETTE.length} colours repeat.` : "."))];
  if (shared) {
    const banks = make("div", { class: "banks", role: "img",
                                "aria-label": `Words per bank, ${request.transfers} wavefronts` });
    for (let bank = 0; bank < BANKS; ++bank) {
      const words = places.get(bank)?.size || 0;
      const cell = make("span", { title: `bank ${bank}: ${words} words` }, words ? `${words}` : "·");
      if (words) cell.style.borderColor = `hsl(${Math.round(bank * 360 / BANKS)} 55% 55%)`;
      banks.append(cell);
    }
    parts.push(banks);
  }
  parts.push(make("p", { class: "dim" },
    `This is one example. At this point the block makes ${exact(event.requests)} ` +
    `request${event.requests > 1 ? "s" : ""} with ${exact(event.transfers)} ` +
    `${shared ? "wavefront" : "sector"}${event.transfers > 1 ? "s" : ""}.`));
  node.replaceChildren(...parts);
}

// --- tables -------------------------------------------------------------------------------------

const MATCHES = "✓ equal to the simulator's count, to the byte";
const DIFFERS = "differs from the simulator's count";

const countedOf = (run) => {
  const sum = new Map();
  for (const buffers of Object.values(run.counted)) {
    for (const [name, c] of Object.entries(buffers)) {
      const row = sum.get(name) || [0, 0, 0];
      KINDS.forEach((kind, i) => (row[i] += c[kind]));
      sum.set(name, row);
    }
  }
  return sum;
};

// O, l and sums start with zeros, m with -infinity.
const firstValues = (name) => (name === "m" ? "first set to -∞" : "first zeroed");

function showTable(node, run, counters, current) {
  const atomics = run.final.requested()[2] > 0;
  const kinds = atomics ? [0, 1, 2] : [0, 1];
  const head = make("tr", {}, make("th", {}, "buffer"), ...kinds.map((k) =>
    make("th", {}, ["read, B", "written, B", "atomic, B"][k])),
    make("th", { title: "requested bytes divided by the size of the buffer" }, "per element"));
  const body = [];
  const row = (name, so, all, size, attributes) => make("tr", attributes, make("td", {}, name),
    ...kinds.map((k) => make("td", { class: all[k] ? KINDS[k] : "zero", "data-bytes": so[k],
                                     title: `of ${exact(all[k])} B` }, exact(so[k]))),
    make("td", {}, size ? times(total(so) / size) : ""));
  for (const [name, so] of counters.buffers) {
    const all = run.final.buffers.get(name);
    const lit = current && run.placeOf(current).space === "global" &&
                run.placeOf(current).name === name;
    body.push(row(name, so, all, run.buffers.get(name).bytes, { "data-buffer": name,
      class: lit ? "now" : null, style: lit ? `--mark:var(--${KINDS[current.kind]})` : null }));
    if (!run.final.initial.has(name)) continue;
    const first = counters.initial.get(name) || 0;
    body.push(make("tr", { class: "part", "data-part": name }, make("td", {}, firstValues(name)),
      ...kinds.map((k) => make("td", k === 1 ? { "data-bytes": first } : {},
                               k === 1 ? exact(first) : "")),
      make("td", {}, times(first / run.buffers.get(name).bytes))));
  }
  body.push(row("sum", counters.requested(), run.final.requested(), 0,
                { class: "total", "data-buffer": "all" }));
  node.querySelector("table").replaceChildren(make("thead", {}, head), make("tbody", {}, ...body));
  const check = node.querySelector(".checked");
  const counted = countedOf(run);
  const done = counters.next === run.byEnd.length;
  const equal = [...counters.buffers].every(([name, so]) =>
    (counted.get(name) || [0, 0, 0]).every((n, k) => n === so[k])) &&
    [...counted.keys()].every((name) => counters.buffers.has(name) || !total(counted.get(name)));
  check.className = `checked ${done ? (equal ? "equal" : "differs") : ""}`;
  check.textContent = !done ? `of ${exact(total(run.final.requested()))} B over the whole run`
    : equal ? MATCHES : DIFFERS;
}

function fullSize(full) {
  return `At N\u00a0=\u00a0${exact(full.n)}, measured on an ${full.device.replace("NVIDIA ", "")}: ` +
         `${bytes((full.read + full.write) / full.heads)} per head`;
}

function showLevels(node, run, counters, full) {
  const f = run.final, c = counters;
  const levels = [
    ["hbm", "HBM ↔ L2", [...c.hbm, 0], [...f.hbm, 0],
     "each sector once per pass: a problem this small fits in the L2. "],
    ["l2", "sectors", c.l2, f.l2, "of 32 B, touched by the requests: what the L1 is asked for"],
    ["requested", "requested", c.requested(), f.requested(), "bytes that threads request from device memory"],
    ["shared", "shared memory", c.shared, f.shared, "bytes read and written on chip"]];
  if (!node.children.length) {
    for (const [id, name, , , words] of levels) {
      node.append(make("div", { class: "card level", "data-level": id }, make("b", {}, name),
        make("span", { class: "now" }), make("div", { class: "bar", "aria-hidden": true },
        make("i", { class: "read" }), make("i", { class: "write" }), make("i", { class: "atomic" })),
        make("span", { class: "dim" }, words)));
    }
    node.firstChild.lastChild.append(make("span", { class: "full" }));
  }
  const note = node.querySelector(".full");
  note.textContent = full ? `${fullSize(full)}.` : "";
  note.dataset.bytes = full ? full.read + full.write : "";
  levels.forEach(([, , so, all], i) => {
    const card = node.children[i], whole = Math.max(1, total(all));
    card.querySelector(".now").textContent = bytes(total(so));
    card.dataset.bytes = total(so);
    card.title = `${exact(total(so))} of ${exact(total(all))} B`;
    [...card.querySelector(".bar").children].forEach((bar, k) => {
      bar.style.width = `${100 * so[k] / whole}%`;
    });
  });
}

// --- a view: one run at one moment --------------------------------------------------------------

const LEGEND = `<span><i style="background:var(--read)"></i>reads now</span>
<span><i style="background:var(--write)"></i>writes now</span>
<span class="adds"><i style="background:var(--atomic)"></i>adds now (atomic)</span>
<span><i class="scale" style="width:60px"></i>requests per element so far: 1 to <b class="most"></b></span>
<span class="small"></span>`;
const most = (hottest) => times(Math.max(2, hottest)).slice(0, -1);

class View {
  constructor(node, compact) {
    this.node = node;
    this.compact = compact;
    this.follow = 0;
    const card = (kind, title, small, ...children) => make("section", { class: `card ${kind}` },
      make("h2", {}, title, " ", make("small", {}, small)), ...children);
    this.canvas = make("canvas", { class: "picture" });
    const legend = make("div", { class: "legend" });
    legend.innerHTML = LEGEND;
    this.at = make("p", { class: "at" });
    this.memory = card("memory", compact ? "" : "Device memory",
                       compact ? "" : "HBM and L2; drawn to scale", this.canvas, legend);
    if (compact) this.memory.append(this.at);
    this.legend = legend;
    if (compact) {
      node.append(this.memory);
    } else {
      this.levels = make("div", { class: "levels" });
      this.chip = make("canvas", { class: "chip" });
      this.registers = make("p", { class: "checked" });
      this.chipCard = card("shared", "Shared memory", "", this.chip, this.registers);
      this.table = card("table", "Requested bytes", "so far, per buffer", make("table"),
                        make("p", { class: "checked" }));
      this.code = make("div", { class: "code" });
      this.request = make("div", { class: "request" });
      node.append(this.levels,
        make("div", { class: "column" }, this.memory, this.table),
        make("div", { class: "column" }, card("source", "Source line", "", this.code), this.chipCard,
             card("warp", "One request of a warp", "", this.request)));
      this.onChip = new OnChip(this.chip);
    }
    this.picture = new Picture(this.canvas, compact ? 430 : 520);
  }

  show(run) {
    this.run = run;
    this.counters = new Counters(run);
    this.follow = Math.min(this.follow, Math.max(...run.kernels.map((k) => k.blocks.length)) - 1);
    this.picture.hottest = run.hottest;
    this.picture.show(run);
    this.legend.querySelector(".most").textContent = most(run.hottest);
    this.legend.querySelector(".adds").hidden = !run.final.requested()[2];
    const small = this.picture.plan.small.map((b) => b.name);
    this.legend.querySelector(".small").textContent =
      small.length ? `Too small to draw: ${small.join(", ")}` : "";
    this.kernel = -1;
    this.plan();
  }

  plan() { this.steps = this.run.steps(this.follow); }

  resize() {
    this.picture.layout();
    this.kernel = -1;
  }

  // What the block's arrays hold, and its latest tiles of Q and K, after a step.
  state(index) {
    const holds = new Map(), run = this.run, tile = {};
    const step = this.steps[index];
    let first = index;
    while (first > 0 && this.steps[first - 1].kernel === step.kernel) --first;
    for (let i = first; i <= index; ++i) {
      const event = this.steps[i].event;
      if (!event) continue;
      const place = run.placeOf(event);
      if (place.space === "shared" && event.kind === 1) {
        const from = run.source(event);
        for (const [key] of holds) {  // a union
          const other = parseInt(key, 10), o = run.places[other];
          if (other !== event.place && o.offset < place.offset + place.bytes &&
              place.offset < o.offset + o.bytes) holds.delete(key);
        }
        for (const [row, rows] of run.isRing(place) ? event.rects : [[0, 1]]) {
          for (let stage = row; stage < row + rows; ++stage) {
            holds.set(`${event.place}/${stage}`, run.held(place, from, stage - row, rows));
          }
        }
      } else if (place.space === "global" && event.rects.length) {
        const [row, rows] = event.rects[0];
        if (/^Q8?$/.test(place.name)) tile.q = [row, rows];
        if (/^K8?$/.test(place.name)) tile.k = [row, rows];
      }
    }
    return { holds, tile };
  }

  set(index) {
    const step = this.steps[Math.max(0, Math.min(index, this.steps.length - 1))];
    const run = this.run, event = step.event;
    this.counters.advance(step.time);
    const middle = event ? (event.start + event.end) / 2 : -1;
    const others = event ? this.run.kernels[step.kernel].blocks
      .filter((b) => b.block !== event.block)
      .map((b) => b.events.find((e) => e.start <= middle && middle < e.end)).filter((e) => e) : [];
    const { holds, tile } = this.state(index);
    this.picture.tile = tile;
    this.picture.draw(this.counters, event, others);
    this.current = step;
    const text = this.text = this.sentence(step, holds);
    this.canvas.setAttribute("aria-label", text);
    if (this.compact) {
      const line = event && run.lines[run.stacks[event.stack].at(-1)];
      this.at.replaceChildren(text, ...line ? [make("br"), make("code", {}, line.text.trim())] : []);
      return;
    }
    showLevels(this.levels, run, this.counters, this.full);
    if (this.kernel !== step.kernel) {
      this.kernel = step.kernel;
      this.onChip.show(run, step.kernel, this.picture.scale);
      const blocks = run.kernels[step.kernel].blocks.length;
      const name = run.blockName(step.kernel, run.kernels[step.kernel].blocks[
        Math.min(this.follow, blocks - 1)].block);
      this.chipCard.querySelector("small").textContent =
        `of block ${name}` + (blocks > 1 ? `, one of ${blocks}` : ", the only one") +
        ` of ${run.kernelName(step.kernel)}`;
      // What the page says of registers is of the pass that its step is about.
      const main = run.kernels.some((k) => k.pass === "backward") ? "backward" : "forward";
      const registers = run.kernels[step.kernel].pass === main ? run.registers || "" : "";
      this.registers.textContent = this.onChip.boxes.length ? registers :
        "This kernel uses no shared memory. " + registers;
    }
    this.onChip.draw(event, holds);
    this.chip.setAttribute("aria-label", "Shared memory: " + ([...holds].map(([key, what]) =>
      `${run.places[parseInt(key, 10)].name} holds ${what.long}`).join(", ") || "empty"));
    showTable(this.table, run, this.counters, event);
    showSource(this.code, run, event);
    showRequest(this.request, run, event);
  }

  // Rows are always those of the buffer in device memory, also of its tile in shared memory.
  sentence(step, holds) {
    const run = this.run, event = step.event;
    if (step.time < 0) return "Nothing has moved yet.";
    if (!event) return `The other blocks of ${run.kernelName(step.kernel)} have finished, too.`;
    const place = run.placeOf(event), shared = place.space === "shared";
    const verb = ["reads", "writes", "adds to"][event.kind];
    const toward = ["from", "to", "in"][event.kind];
    const what = !shared ? run.elements(event)
      : event.kind === 1 ? run.held(place, run.source(event)).long : run.heldBy(event, holds);
    const where = !shared ? "" : what === COMPUTED
      ? ` ${toward} ${place.name} in shared memory` : ` ${toward} shared memory`;
    const how = ["load", "store", "atomic"].includes(event.how) ? "" : ` by ${event.how}`;
    return `Block ${run.blockName(step.kernel, event.block)} ${verb} ${what}${where && what.includes(",") ? "," : ""}${where}${how}: ` +
           `${exact(event.bytes)} B`;
  }
}

// --- the controls -------------------------------------------------------------------------------

const WORDS = { variant: "variant", n: "N", d: "d", smem: "shared memory M", causal: "causal" };
const tiles = (run) => [["Br", run.br], ["Bc", run.bc]].filter(([, rows]) => rows)
  .map(([name, rows]) => `${name} = ${rows}`).join(", ");

class Controls {
  constructor(node, runs, change) {
    this.node = node;
    this.runs = runs;
    this.change = change;
    this.inputs = {};
    this.stops = {};
    for (const key of ["variant", "n", "d", "smem", "causal"]) {
      const all = [...new Set(runs.map((r) => r[key]))].filter((v) => v !== 0);
      if (all.length < 2) continue;
      if (typeof all[0] === "number") all.sort((a, b) => a - b);
      this.stops[key] = all;
      const label = make("label", {}, key === "n" && PAGE.size || WORDS[key]);
      let input;
      if (key === "causal") {
        input = make("input", { type: "checkbox", id: `set-${key}` });
      } else if (key === "variant") {
        input = make("select", { id: `set-${key}` }, ...all.map((v) => make("option", {}, v)));
      } else {
        input = make("input", { type: "range", min: 0, max: all.length - 1, step: 1,
                                id: `set-${key}` });
      }
      label.append(input);
      if (input.type === "range") label.append(make("output", { for: `set-${key}` }));
      input.addEventListener("input", () => this.choose(key));
      this.inputs[key] = input;
      node.append(label);
    }
    this.tiles = make("output", { class: "tiles", "aria-label": "Tile sizes" });
    if (runs.some(tiles)) node.append(this.tiles);
  }

  value(key) {
    const input = this.inputs[key];
    return key === "causal" ? input.checked
         : input.type === "range" ? this.stops[key][+input.value] : input.value;
  }

  // The run with this value that agrees in most of the others.
  choose(key) {
    const wanted = {};
    for (const k of Object.keys(this.inputs)) wanted[k] = this.value(k);
    const score = (r) => Object.keys(wanted).reduce((n, k) =>
      n + (r[k] === wanted[k]) * (k === key ? 100 : 1), 0);
    this.change(this.runs.reduce((best, r) => (score(r) > score(best) ? r : best)));
  }

  set(run) {
    for (const [key, input] of Object.entries(this.inputs)) {
      input.parentNode.hidden = run[key] === 0;  // a variant whose tiles have one size
      if (key === "causal") input.checked = run.causal;
      else if (input.type === "range") {
        if (key === "smem") {  // M decides Bc; which M make a difference depends on d
          const alike = this.runs.filter((r) => r.variant === run.variant && r.d === run.d);
          this.stops.smem = [...new Set(alike.map((r) => r.smem))].sort((a, b) => a - b);
          input.max = this.stops.smem.length - 1;
        }
        input.value = this.stops[key].indexOf(run[key]);
        const text = key === "smem" ? `${run.smem / 1024} KB` : String(run[key]);
        input.setAttribute("aria-valuetext", text);
        input.parentNode.querySelector("output").textContent = text;
      } else input.value = run[key];
    }
    this.tiles.textContent = tiles(run);
  }
}

// --- the replay ---------------------------------------------------------------------------------

class Player {
  constructor(show) {
    this.show = show;
    this.last = null;  // until the run is here
    this.position = 0;
    this.playing = false;
    $("play").addEventListener("click", () => this.toggle());
    $("back").addEventListener("click", () => this.move(-1));
    $("step").addEventListener("click", () => this.move(1));
    $("home").addEventListener("click", () => this.go(0));
    $("end").addEventListener("click", () => this.go(this.last));
    $("scrub").addEventListener("input", () => this.go(+$("scrub").value));
    document.addEventListener("keydown", (e) => this.key(e));
  }

  // Another run is on its way: until reset() nothing moves.
  wait() {
    this.stop();
    this.last = null;
    document.body.ariaBusy = "true";
  }

  reset(steps, fraction = 0) {
    document.body.ariaBusy = "false";
    this.last = steps - 1;
    $("scrub").max = this.last;
    this.put(Math.round(fraction * this.last));
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const far = event.shiftKey ? 10 : 1;
    const actions = { ArrowLeft: () => this.move(-far), ArrowRight: () => this.move(far),
                      Home: () => this.go(0), End: () => this.go(this.last),
                      " ": () => this.toggle() };
    if (!actions[event.key] || !this.owns(event.key, event.target, event.shiftKey)) return;
    event.preventDefault();
    actions[event.key]();
  }

  // Not the keys that what has the focus needs itself. Home, End and Space scroll the page as ever
  // unless the picture, the footer or nothing at all has the focus.
  owns(key, at, shift) {
    if (at.matches("select, pre, #controls input")) return false;
    if (at.matches("input[type=range]")) return key === " " || shift;
    if (key.startsWith("Arrow")) return true;
    if (key === " " && at.matches("button, a")) return false;
    return at === document.body || at.closest("footer, canvas") !== null;
  }

  move(by) { this.go(Math.round(this.position) + by); }

  go(position) {
    this.stop();
    this.put(position);
  }

  put(position) {
    if (this.last === null) return;
    this.position = Math.max(0, Math.min(position, this.last));
    const index = Math.floor(this.position);
    $("scrub").value = index;
    this.show(index, this.last ? index / this.last : 0);
  }

  toggle() {
    if (this.playing) return this.stop();
    if (this.last === null) return;
    if (this.position >= this.last) this.position = 0;
    this.playing = true;
    $("status").setAttribute("aria-live", "off");
    this.button();
    let before = performance.now();
    // Half a second a step, and no run longer than a minute.
    const pace = Math.max(2, this.last / 60);
    const tick = (now) => {
      if (!this.playing) return;
      const from = Math.floor(this.position);
      this.position += (now - before) / 1000 * pace * +$("speed").value;
      before = now;
      if (Math.floor(this.position) !== from) this.put(this.position);
      if (this.position >= this.last) this.stop();
      else requestAnimationFrame(tick);
    };
    requestAnimationFrame(tick);
  }

  stop() {
    this.playing = false;
    $("status").setAttribute("aria-live", "polite");
    this.button();
  }

  button() {
    $("play").setAttribute("aria-label", this.playing ? "Pause" : "Play");
  }
}

const loaded = new Map();
async function runOf(entry) {
  if (!loaded.has(entry.id)) loaded.set(entry.id, new Run(await unpack(entry.id)));
  return loaded.get(entry.id);
}

function onResize(redraw) {
  let width = document.documentElement.clientWidth;
  window.addEventListener("resize", () => {
    if (document.documentElement.clientWidth === width) return;
    width = document.documentElement.clientWidth;
    redraw();
  });
}

// --- a page of one step -------------------------------------------------------------------------

async function stepPage() {
  const view = new View($("views").appendChild(make("div", { class: "view" })), false);
  const player = new Player((index) => {
    view.set(index);
    const step = view.steps[index];
    $("status").textContent = `${index} of ${view.steps.length - 1}. ${view.text}`;
    $("scrub").setAttribute("aria-valuetext", `step ${index} of ${view.steps.length - 1}`);
    for (const button of $("kernels").children) {
      button.toggleAttribute("aria-current", +button.dataset.kernel === step.kernel);
    }
  });
  const blocks = make("select", { id: "block", "aria-label": "Block to follow" });
  blocks.addEventListener("input", () => {
    const fraction = player.position / player.last;
    view.follow = +blocks.value;
    view.kernel = -1;
    view.plan();
    player.reset(view.steps.length, fraction);
  });
  let wanted = null;
  const select = async (entry, fraction = 0) => {
    player.wait();
    controls.set(entry);
    wanted = entry;
    const run = await runOf(entry);
    if (wanted !== entry) return;  // the reader has chosen another one meanwhile
    view.full = entry.full;
    view.show(run);
    const largest = run.kernels.reduce((a, b) => (b.blocks.length > a.blocks.length ? b : a));
    blocks.replaceChildren(...largest.blocks.map((b, i) => make("option", { value: i },
      run.blockName(run.kernels.indexOf(largest), b.block))));
    blocks.value = view.follow;
    blocks.parentNode.hidden = largest.blocks.length < 2;
    $("kernels").replaceChildren(...run.kernels.length < 2 ? [] : run.kernels.map((kernel, k) => {
      const button = make("button", { type: "button", "data-kernel": k, title: kernel.name },
                          `${k + 1} ${run.kernelName(k)}`);
      button.addEventListener("click", () =>
        player.go(view.steps.findIndex((s) => s.kernel === k && s.event)));
      return button;
    }));
    player.reset(view.steps.length, fraction);
  };
  const controls = new Controls($("controls"), PAGE.runs, (entry) => select(entry));
  $("controls").append(make("label", {}, "follow block", blocks));
  const redraw = () => {
    readColours();
    view.resize();
    player.put(player.position);
  };
  onTheme(redraw);
  onResize(redraw);
  sources = await unpack("sources");
  await select(PAGE.runs.find((r) => r.id === PAGE.first));
}

// --- two runs side by side ----------------------------------------------------------------------

async function comparePage() {
  const race = make("section", { class: "card wide" }, make("h2", {}, "Requested bytes so far"),
                    make("div", { class: "race" }), make("p", { class: "checked" }));
  const why = make("section", { class: "card wide" }, make("h2", {}, "What to look at"),
                   make("ul", { class: "why" }));
  const table = make("section", { class: "card wide" },
                     make("h2", {}, "Per buffer ", make("small", {},
                       "so far; the small number is bytes divided by the size of the buffer: how " +
                       "often each element was requested, on average")), make("table"));
  const growth = make("section", { class: "card wide" }, make("h2", {}, "With larger N"),
                      make("p", { class: "growth" }), make("h2", {}, "What reaches HBM"),
                      make("p", { class: "hbm" }), make("div", { class: "race" }));
  $("views").append(race);
  const views = [0, 1].map(() => new View($("views").appendChild(make("div", { class: "view" })),
                                          true));
  $("views").append(table, why, growth);
  let preset = PAGE.presets[0], entries = [];

  const bars = () => {
    const longest = Math.max(...views.map((v) => total(v.run.final.requested())));
    const rows = views.map((v, i) => {
      const so = v.counters.requested();
      const bar = make("div", { class: "bar", role: "img", "aria-label":
        `${entries[i].label}: ${exact(total(so))} B` });
      for (const [name, sums] of v.counters.buffers) {
        [0, 1, 2].forEach((kind) => {
          if (!sums[kind]) return;
          const part = make("i", { class: KINDS[kind], title:
            `${name} ${["read", "written", "atomic"][kind]}: ${exact(sums[kind])} B` },
            sums[kind] > .025 * longest ? name : "");
          part.style.width = `${100 * sums[kind] / longest}%`;
          bar.append(part);
        });
      }
      return make("div", { class: "lane" }, make("span", {}, entries[i].label), bar,
                  make("b", { "data-total": i, "data-bytes": total(so) }, bytes(total(so))));
    });
    race.querySelector(".race").replaceChildren(...rows);
    const done = views.every((v) => v.counters.next === v.run.byEnd.length);
    const [a, b] = views.map((v) => total(v.counters.requested()));
    const equal = views.every((v) => [...countedOf(v.run)].every(([name, counted]) =>
      counted.every((n, k) => n === (v.counters.buffers.get(name) || [0, 0, 0])[k])));
    const check = race.querySelector(".checked");
    check.className = `checked ${done ? (equal ? "equal" : "differs") : ""}`;
    check.textContent = !done ? "Blue is read, orange is written. Both runs are at the same fraction of their steps." :
      `${entries[0].label} requests ${times(a / b)} the bytes of ${entries[1].label}; ` +
      (equal ? MATCHES : DIFFERS);
  };

  const fill = () => {
    const names = [...new Set(views.flatMap((v) => [...v.counters.buffers.keys()]))];
    const head = [make("tr", {}, make("th", {}, ""), ...views.map((_, i) =>
      make("th", { colspan: 2 }, entries[i].label))),
      make("tr", {}, make("th", {}, "buffer"), ...views.flatMap(() =>
        [make("th", {}, "read, B"), make("th", {}, "written, B")]))];
    const cell = (n, kind, size) => make("td", { class: n ? KINDS[kind] : "zero", "data-bytes": n },
      exact(n), size && n ? make("small", {}, times(n / size)) : "");
    const nothing = () => make("td", { class: "zero" }, "-");
    const rows = names.flatMap((name) => {
      const row = make("tr", { "data-buffer": name }, make("td", {}, name), ...views.flatMap((v) => {
        const sums = v.counters.buffers.get(name);
        if (!sums) return [nothing(), nothing()];
        const size = v.run.buffers.get(name).bytes;
        return [cell(sums[0], 0, size), cell(sums[1] + sums[2], 1, size)];
      }));
      if (!views.some((v) => v.run.final.initial.has(name))) return [row];
      return [row, make("tr", { class: "part", "data-part": name }, make("td", {}, firstValues(name)),
        ...views.flatMap((v) => v.run.final.initial.has(name)
          ? [make("td"), cell(v.counters.initial.get(name) || 0, 1, v.run.buffers.get(name).bytes)]
          : [make("td"), make("td")]))];
    });
    rows.push(make("tr", { class: "total", "data-buffer": "all" }, make("td", {}, "sum"),
      ...views.flatMap((v) => {
        const sums = v.counters.requested();
        return [cell(sums[0], 0), cell(sums[1] + sums[2], 1)];
      })));
    table.querySelector("table").replaceChildren(make("thead", {}, ...head),
                                                 make("tbody", {}, ...rows));
  };

  // How the two grow with N, from the runs that the page holds.
  const grow = () => {
    const of = (side, causal) => PAGE.runs.filter((r) => r.step === side.step &&
      r.variant === side.variant && r.causal === causal).sort((x, y) => x.n - y.n);
    const [a, b] = entries.map((side) => of(side, side.causal));
    const [before, last] = [a.length - 2, a.length - 1];
    const factors = [a, b].map((runs) => runs[last].bytes / runs[before].bytes);
    const squared = (a[last].n / a[before].n) ** 2;
    const ratios = a.map((run, i) => run.bytes / b[i].bytes);
    const alike = Math.max(...ratios) / Math.min(...ratios) < 1.1;
    const faster = entries[factors[0] > factors[1] ? 0 : 1].label;
    const listed = ratios.map((ratio, i) => `${times(ratio)} at N\u00a0=\u00a0${a[i].n}`).join(", ");
    const parts = [
      `From N\u00a0=\u00a0${a[before].n} to ${a[last].n} the requested bytes grow by ` +
      `${times(factors[0])} in ${entries[0].label} and by ${times(factors[1])} in ` +
      `${entries[1].label}; N² grows by ${times(squared)}.`,
      alike ? `Both grow alike, so the ratio hardly changes: ${listed}.`
            : `${faster} grows faster, so the ratio changes: ${listed}.`,
      preset.grows];
    if (factors.some((factor) => factor < .97 * squared)) {
      parts.push("Buffers that move a fixed number of times grow only with N: the larger N, the less " +
                 "they count.");
    }
    if (entries[0].causal) {
      parts.push(...entries.map((entry, i) => {
        const share = [a, b][i][last].bytes / of(entry, false)[last].bytes;
        return `With the causal mask ${entry.label} requests ` + (share > .995 ? "as many bytes as without."
          : `${Math.round(100 * (1 - share))}% fewer bytes at N\u00a0=\u00a0${a[last].n}.`);
      }));
    }
    growth.querySelector(".growth").textContent = parts.join(" ");
  };

  // Small runs fit in the L2; at full size a GPU's counters say what does not.
  const hbm = () => {
    const [a, b] = entries.map((e) => e.full), bars = growth.querySelector(".race");
    const small = views.map((v) => bytes(total(v.run.final.hbm)));
    const all = "The runs on this page fit in the L2, so HBM carries each buffer once per pass (modelled): " +
                `${small[0]} in ${entries[0].label}, ${small[1]} in ${entries[1].label}.`;
    const both = a && b && ["n", "heads", "device"].every((key) => a[key] === b[key]);
    const each = [a, b].map((full) => full && (full.read + full.write) / full.heads);
    growth.querySelector(".hbm").textContent = !both ? all :
      `${all} At N\u00a0=\u00a0${exact(a.n)} with ${a.heads} heads (measured on an ${a.device}) the L2 is too ` +
      `small to hold everything, and HBM carries ${bytes(each[0])} per head against ` +
      `${bytes(each[1])}: ${each[0] >= each[1] ? times(each[0] / each[1]) : times(each[1] / each[0])}` +
      ` ${each[0] >= each[1] ? "as much" : "less"}. ${preset.hbm}`;
    bars.replaceChildren(...!both ? [] : [a, b].map((full, i) => {
      const bar = make("div", { class: "bar", role: "img", "aria-label": fullSize(full) });
      for (const kind of ["read", "write"]) {
        const part = make("i", { class: kind });
        part.style.width = `${100 * full[kind] / full.heads / Math.max(...each)}%`;
        bar.append(part);
      }
      return make("div", { class: "lane" }, make("span", {}, entries[i].label), bar,
                  make("b", { "data-full": i, "data-bytes": full.read + full.write }, bytes(each[i])));
    }));
  };

  const player = new Player((index, fraction) => {
    for (const view of views) view.set(Math.round(fraction * (view.steps.length - 1)));
    bars();
    fill();
    const percent = `${Math.round(100 * fraction)}% of both runs`;
    $("status").textContent = `${percent}: ` + views.map((v, i) =>
      `${entries[i].label} ${bytes(total(v.counters.requested()))}`).join(", ");
    $("scrub").setAttribute("aria-valuetext", percent);
  });
  const select = async (wanted, fraction = 0) => {
    player.wait();
    entries = [preset.a, preset.b].map((side) => {
      const runs = PAGE.runs.filter((r) => r.step === side.step && r.variant === side.variant);
      return runs.find((r) => r.n === wanted.n && r.causal === wanted.causal) || runs[0];
    });
    controls.set(entries[0]);
    const chosen = entries;
    const runs = await Promise.all(entries.map(runOf));
    if (chosen !== entries) return;
    const hottest = Math.max(...runs.map((r) => r.hottest));
    views.forEach((view, i) => {
      view.show(runs[i]);
      view.picture.hottest = hottest;
      view.legend.querySelector(".most").textContent = most(hottest);  // one scale for both
      const blocks = Math.max(...runs[i].kernels.map((k) => k.blocks.length));
      view.memory.querySelector("h2").replaceChildren(entries[i].label, " ", make("small", {},
        `${blocks} block${blocks > 1 ? "s" : ""} per head; ${entries[i].idea}`));
    });
    why.querySelector(".why").replaceChildren(...preset.why.map((w) => make("li", {}, w)));
    grow();
    hbm();
    player.reset(Math.max(...views.map((v) => v.steps.length)), fraction);
  };
  const choice = make("select", { id: "preset" }, ...PAGE.presets.map((p, i) =>
    make("option", { value: i }, p.name)));
  choice.addEventListener("input", () => {
    preset = PAGE.presets[+choice.value];
    select(entries[0]);
  });
  $("controls").append(make("label", {}, "compare", choice));
  const controls = new Controls($("controls"), PAGE.runs.map((r) => ({ ...r, variant: "", smem: 0 })),
                                (entry) => select(entry));
  const redraw = () => {
    readColours();
    for (const view of views) view.resize();
    player.put(player.position);
  };
  onTheme(redraw);
  onResize(redraw);
  await select(PAGE.runs.find((r) => r.id === PAGE.first));
}

readColours();
(PAGE.kind === "step" ? stepPage() : comparePage())
  .then(() => (document.documentElement.dataset.ready = performance.now().toFixed(0)));
