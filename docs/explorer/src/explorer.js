// Replays traces (docs/json.md) side by side, and draws series of runs. PAGE and the files of steps, which arrive
// when they are needed, are of explorer.py; of report.py with the reader's runs. Every count of a replay is a sum over
// a trace's events.

const KINDS = ["read", "write", "atomic"];
const SECTOR = 32, BANKS = 32, WORD = 4;
const PALETTE = ["#8ecae6", "#ffb703", "#95d5b2", "#f4a3a8", "#cdb4db", "#e9c46a", "#a3b8ff",
                 "#d8e2a8"];
const PAGE = JSON.parse(document.getElementById("page").textContent);
const $ = (id) => document.getElementById(id);
const ORDER = ["Q", "Q8", "K", "K8", "V", "V8", "S", "P", "m", "l", "O_parts", "LSE_parts", "O", "LSE",
               "dO", "delta", "LSE2", "dP", "dS", "dQ_sum", "dQ", "dK", "dV"];

// --- words --------------------------------------------------------------------------------------

function exact(n) { return Math.round(n).toLocaleString("en-US"); }
function scaled(n, units) {
  for (const [unit, size] of units) {
    const rounded = +(n / size).toPrecision(3);  // 999,600 is 1.00 MB
    if (rounded >= 1) return `${rounded >= 100 ? rounded : rounded.toPrecision(3)} ${unit}`;
  }
  return `${exact(n)} ${units.at(-1)[0]}`;
}
const bytes = (n) => scaled(n, [["TB", 1e12], ["GB", 1e9], ["MB", 1e6], ["kB", 1e3], ["B", 1]]);
const time = (ms) => scaled(1e6 * ms, [["s", 1e9], ["ms", 1e6], ["us", 1e3], ["ns", 1]]);
function span(what, first, count) {  // "rows 64 to 127"
  return count === 1 ? `${what} ${first}` : `${what}s ${first} to ${first + count - 1}`;
}
function times(x) { return x >= 9.95 ? `${Math.round(x)}×` : `${+x.toFixed(x < 1.095 ? 2 : 1)}×`; }
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
// --- dark or light, as the system has it until the reader chooses -------------------------------

function firstTheme() {
  try {
    const kept = localStorage.getItem("theme");
    if (kept) return kept;
  } catch { /* a page from a file may keep nothing */ }
  return matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
}
function onTheme(redraw) {
  const root = document.documentElement.dataset;
  const set = (theme) => {
    root.theme = theme;
    redraw();
  };
  let chosen = false;  // also where nothing can be kept
  $("theme").addEventListener("click", () => {
    const theme = root.theme === "dark" ? "light" : "dark";
    chosen = true;
    try { localStorage.setItem("theme", theme); } catch { /* as above */ }
    set(theme);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    if (!chosen) set(firstTheme());
  });
}
document.documentElement.dataset.theme = firstTheme();

// --- a run --------------------------------------------------------------------------------------

async function unpack(text) {
  const packed = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
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
      kernel.blocks = data.blocks[k].map(([block, start, rows, waits]) => {
        let now = start;
        const events = rows.map((row, i) => {
          const [place, stack, kind, how, ticks, size, requests, transfers, read, write, whole,
                 ...corners] = row;
          const rects = [];
          for (let i = 0; i < corners.length; i += 4) rects.push(corners.slice(i, i + 4));
          const event = { kernel: k, block, place, stack, kind, how: data.hows[how], start: now,
                          end: now += ticks, bytes: size, requests, transfers, read, write,
                          whole: !!whole, rects, waits: waits?.[i] };
          this.events.push(event);
          return event;
        });
        return { block, events, columns: nameColumns(this, events) };
      });
    });
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

  // What of K blocks copy beside rows of Q; in a backward, what of Q beside keys. Each tile of scores once.
  tilesOf(k) {
    const kernel = this.kernels[k], walks = kernel.pass === "backward" ? "Q" : "K";
    if (kernel.tiles) return kernel.tiles;
    const found = new Map();
    for (const { events } of kernel.blocks) {
      const at = {};
      for (const event of events) {
        const { name, space } = this.placeOf(event);
        if (space !== "global" || event.kind !== 0 || !event.rects.length) continue;
        at[name] = event.rects[0];
        if (name !== walks || !at.Q || !at.K) continue;
        const rect = [at.Q[0], at.Q[1], at.K[0], at.K[1]], key = rect.join();
        if (!found.has(key)) found.set(key, { rect, end: event.end, seen: this.seenIn(rect) });
      }
    }
    return kernel.tiles = [...found.values()];
  }

  // How many scores of a tile the mask leaves.
  seenIn([row, rows, key, keys]) {
    let n = 0;
    for (let r = row; r < row + rows; ++r) {
      const sees = keysOf(this.problem, r);
      for (let c = key; c < key + keys; ++c) n += sees(c);
    }
    return n;
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

// --- masks --------------------------------------------------------------------------------------

const PREDICATES = {  // of steps/15_masks/predicates.h; `back`: how far before the row's own key a key is
  strided: (back, n) => back >= 0 && (back < n || back % n === 0),
  prefix: (back, n, key) => back >= 0 || key < n,
};

// Whether row r sees a key.
function keysOf(problem, r) {
  const { n, nk, causal, row_starts: rows = [0, n], key_starts: keys = [0, nk], window: [left, right] = [-1, -1] } = problem;
  const after = rows.findIndex((first) => first > r), own = r + keys[after] - rows[after];  // of documents
  const [name, number] = (problem.mask ?? "").split(":");
  const limit = (given) => (given < 0 ? Infinity : given);
  return (c) => c >= keys[after - 1] && c < keys[after] && own - c <= limit(left) &&
    c - own <= Math.min(limit(right), causal ? 0 : Infinity) && (!name || PREDICATES[name](own - c, +number, c));
}

// The scores that are seen, a pixel each.
function shapeOf(run) {
  const { n, nk } = run.problem, canvas = make("canvas", { width: nk, height: n });
  const image = new ImageData(nk, n);
  for (let r = 0; r < n; ++r) {
    const sees = keysOf(run.problem, r);
    for (let c = 0; c < nk; ++c) image.data.set([128, 128, 128, sees(c) ? 110 : 0], 4 * (r * nk + c));
  }
  canvas.getContext("2d").putImageData(image, 0, 0);
  return canvas;
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
    this.heat = new Map();
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
    if (place.space !== "global") return;
    this.buffers.get(place.name)[event.kind] += event.bytes;
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
  for (const name of ["cell", "line", "fg", "dim", "read", "write", "atomic", "held"]) {
    probe.style.color = `var(--${name})`;
    colours[name] = getComputedStyle(probe).color;
  }
  probe.remove();
}
const kindColour = (kind) => colours[KINDS[kind]];

// Rows are queries: Q to the left, O to the right. Columns are keys: K and V lie on their side.
// Beside the tiles of a mask only Q and K.
function arrange(run, masked) {
  const n = run.problem.n * run.problem.h, { nk } = run.problem;  // the rows of all heads
  const boxes = { left: [], squares: [], right: [], top: [], bottom: [] };
  const small = [];
  for (const [name, place] of run.buffers) {
    if (masked && !/^[QK]$/.test(name)) continue;
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
  constructor(canvas) {
    this.canvas = canvas;
    canvas.tabIndex = 0;
    canvas.setAttribute("role", "img");
    canvas.addEventListener("pointermove", (e) => this.point(e));
    canvas.addEventListener("pointerleave", () => hideTip());
    canvas.addEventListener("focus", () => this.describe());
    canvas.addEventListener("blur", () => hideTip());
  }

  show(run) {
    this.run = run;
    this.plan = arrange(run, this.masked);
    this.layout();
  }

  // Places of all boxes in pixels.
  layout() {
    const run = this.run, plan = this.plan;
    const { clientWidth: width, clientHeight: height } = this.canvas.parentNode;  // its room
    const label = 17, gap = width < 240 ? 8 : 14, thin = 9;
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
    const scale = Math.min((width - fixed - 8) / elements,
                           (height - lines * (label + gap)) / tall);
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
    this.height = height;
    this.width = width;
    const spare = Math.max(0, Math.floor((height - (y - gap + 4)) / 2));
    for (const box of this.boxes) box.y += spare;
    const ratio = window.devicePixelRatio || 1;
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(this.height * ratio);
    this.canvas.style.cssText = `width:${width}px;height:${height}px`;
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
    const down = Math.ceil(box.rows / BIN), scale = Math.log1p(Math.min(Math.max(this.hottest, 4), 12));
    const edges = (n, all) => Array.from({ length: n + 1 }, (_, i) => Math.min(i * BIN, all));
    const x = edges(box.turned ? down : across, box.turned ? box.rows : box.columns)
      .map((e) => Math.round(box.x + e * box.w / (box.turned ? box.rows : box.columns)));
    const y = edges(box.turned ? across : down, box.turned ? box.columns : box.rows)
      .map((e) => Math.round(box.y + e * box.h / (box.turned ? box.columns : box.rows)));
    for (let i = 0; i < down; ++i) {
      for (let j = 0; j < across; ++j) {
        const [reads, writes] = heat.map((h) => h[i * across + j]);
        if (reads + writes <= 0) continue;
        g.fillStyle = writes > 0 ? colours.write : colours.read;
        g.globalAlpha = .18 + .62 * Math.min(1, Math.log1p(reads + writes) / scale);
        const [h, v] = box.turned ? [i, j] : [j, i];
        g.fillRect(x[h], y[v], Math.max(1, x[h + 1] - x[h]), Math.max(1, y[v + 1] - y[v]));
      }
    }
    g.globalAlpha = 1;
  }

  // The tile of scores that the block's latest tiles of Q and K make.
  drawGhost(g, box) {
    g.textAlign = "center";
    g.fillText(box.w > 190 ? "S, P: one tile at a time, on the chip" : box.w > 90 ? "S, P on the chip" : "",
               box.x + box.w / 2, box.y - 5, box.w);
    g.textAlign = "start";
    if (this.masked) this.drawTiles(g, box);
    if (!this.tile || !this.tile.q || !this.tile.k) return;
    const [row, rows] = this.tile.q, [key, keys] = this.tile.k;
    const [x, y, w, h] = this.rect(box, [row, rows, key, keys]);
    g.fillStyle = colours.read;
    g.globalAlpha = .75;
    g.fillRect(x, y, Math.max(1.5, w), Math.max(1.5, h));
    g.globalAlpha = 1;
  }

  // A mask, the tiles that the kernel visits, filled where it has, and whether they are cut or full.
  drawTiles(g, box) {
    g.drawImage(this.run.shape ??= shapeOf(this.run), box.x, box.y, box.w, box.h);
    for (const { rect, end, seen } of this.run.tilesOf(this.kernel)) {
      const [x, y, w, h] = this.rect(box, rect), full = seen === rect[1] * rect[3];
      g.fillStyle = g.strokeStyle = colours.read;
      g.globalAlpha = end <= this.counters.time ? .3 : 0;
      g.fillRect(x, y, w, h);
      g.globalAlpha = 1;
      g.strokeRect(x + .5, y + .5, w - 1, h - 1);
      g.fillStyle = colours.fg;
      g.textAlign = "center";
      if (w > 12 && h > 12) g.fillText(full ? "F" : "c", x + w / 2, y + h / 2 + 4);
    }
    g.textAlign = "start";
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
    if (box.ghost && this.masked) {
      const tile = this.run.tilesOf(this.kernel).find(({ rect: [top, rows, left, keys] }) =>
        row >= top && row < top + rows && column >= left && column < left + keys);
      const what = !tile ? "skipped" : `${tile.seen === tile.rect[1] * tile.rect[3] ? "full" : "cut"}, ` +
        `${exact(tile.seen)} of ${exact(tile.rect[1] * tile.rect[3])} scores are seen`;
      return showTip(event.clientX, event.clientY, `query ${row} ${keysOf(this.run.problem, row)(column) ? "sees" :
        "does not see"} key ${column}; the tile is ${what}`);
    }
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
      g.fillStyle = held === undefined ? colours.cell : colours.held;
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

// --- a block's tensor memory --------------------------------------------------------------------

const LANES = 128, COLUMNS = 512;
const ROLES = ["copy", "multiply", "softmax", "correct O"];
const HOLDERS = { S: PALETTE[0], P: PALETTE[1], O: PALETTE[2] };

// Names what a block's events of tensor memory use: P is the operand of a product that adds to O, S the result of one
// of two operands in shared memory. What else is stored is P in P's columns, and O. The columns by name, if there are any.
function nameColumns(run, events) {
  const uses = events.filter((e) => run.placeOf(e).space === "tensor"), held = Array(COLUMNS).fill();
  const products = uses.filter((e) => e.how === "tcgen05.mma");
  const lines = new Set(products.filter((e) => e.kind === 0).map((e) => e.stack));
  const letterOf = (e) => (e.kind === 0 ? "P" : lines.has(e.stack) ? "O" : "S");
  const found = { S: new Map(), P: new Map(), O: new Map() };
  for (const e of products) found[letterOf(e)].set(e.rects[0][2], e.rects[0][3]);
  const columns = Object.entries(found).flatMap(([letter, of]) => [...of].sort(([a], [b]) => a - b)
    .map(([first, count], i) => ({ name: of.size > 1 ? letter + i : letter, first, count })));
  const named = (letter, [, , at]) => columns.find(({ name, first, count }) =>
    name[0] === letter && first <= at && at < first + count)?.name;
  for (const e of uses) {
    const [, , at, count] = e.rects[0];
    e.holder = e.how === "tcgen05.mma" ? named(letterOf(e), e.rects[0])
      : e.kind === 0 ? held[at] : named("P", e.rects[0]) ?? named("O", e.rects[0]);
    e.role = e.how === "tcgen05.mma" ? 1 : e.holder?.[0] === "O" ? 3 : 2;
    if (e.kind) held.fill(e.holder, at, at + count);
  }
  for (const e of events) if (e.how === "TMA" && run.placeOf(e).space === "global") e.role = 0;
  return columns.length ? columns : null;
}

class TensorMemory {
  constructor(card) {
    this.card = card;
    this.canvas = card.querySelector("canvas");
    this.canvas.setAttribute("role", "img");
    this.canvas.tabIndex = 0;
    this.canvas.addEventListener("pointermove", (e) => this.point(e));
    this.canvas.addEventListener("pointerleave", () => hideTip());
  }

  // On the left the columns now, on the right over the waits; on a phone the one above the other.
  show(run, block) {
    this.run = run;
    this.card.hidden = !block.columns;
    if (!block.columns) return;
    this.events = block.events.filter((e) => e.role !== undefined);
    this.waits = [...new Set(this.events.map((e) => e.waits))].sort((a, b) => a - b);
    const width = this.canvas.clientWidth, wide = width > 640, line = 14, high = 72, labels = 64;
    this.map = { x: 0, y: line, w: wide ? .38 * width : width, h: high + ROLES.length * line - (wide ? 0 : 40) };
    const x = wide ? this.map.w + 16 + labels : labels;
    this.time = { x, y: wide ? line : this.map.y + this.map.h + 2 * line, w: width - x, h: high, line };
    this.width = width;
    this.height = this.time.y + high + ROLES.length * line + 4;
    const ratio = window.devicePixelRatio || 1;
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(this.height * ratio);
    this.canvas.style.height = `${this.height}px`;
    this.canvas.getContext("2d").setTransform(ratio, 0, 0, ratio, 0, 0);
  }

  draw({ time, event }) {
    if (this.card.hidden) return;
    const g = this.canvas.getContext("2d"), { map, time: chart } = this, { line } = chart;
    const box = (colour, ...at) => ((g.fillStyle = colour), g.fillRect(...at));
    const wide = chart.w / this.waits.length, at = (e) => chart.x + this.waits.indexOf(e.waits) * wide;
    const columns = (e) => [chart.y + e.rects[0][2] * chart.h / COLUMNS, e.rects[0][3] * chart.h / COLUMNS];
    g.clearRect(0, 0, this.width, this.height);
    g.font = "11px system-ui, sans-serif";
    g.lineWidth = 1;
    for (const { x, y, w, h } of [map, chart]) box(colours.cell, x, y, w, h);
    this.held = Array(COLUMNS).fill();
    for (const e of this.events) {
      const colour = HOLDERS[e.holder?.[0]] ?? colours.dim;
      box(colour, at(e), chart.y + chart.h + e.role * line + 2, Math.max(1, wide - .5), line - 3);
      if (!e.holder || !e.kind) continue;
      const [y, h] = columns(e);
      box(colour, at(e), y, chart.x + chart.w - at(e), h);
      if (e.end <= time) this.held.fill(e.holder, e.rects[0][2], e.rects[0][2] + e.rects[0][3]);
    }
    const text = (words, x, y, colour = colours.dim) => ((g.fillStyle = colour), g.fillText(words, x, y));
    text("column 0", map.x, map.y - 4);
    text(COLUMNS, map.x + map.w - 20, map.y - 4);
    text("columns", chart.x - 60, chart.y + 10);
    text("waits →", chart.x, chart.y - 4);
    ROLES.forEach((role, i) => text(role, chart.x - 60, chart.y + chart.h + (i + 1) * line - 2));
    for (let c = 0, end; c < COLUMNS; c = end) {
      for (end = c + 1; end < COLUMNS && this.held[end] === this.held[c]; ++end);
      if (!this.held[c]) continue;
      const x = map.x + c * map.w / COLUMNS, w = (end - c) * map.w / COLUMNS;
      box(HOLDERS[this.held[c][0]], x, map.y, w, map.h);
      g.strokeStyle = colours.line;
      g.strokeRect(x, map.y, w, map.h);
      if (w > 18) text(this.held[c], x + 4, map.y + 14, "#10141a");
    }
    this.canvas.setAttribute("aria-label", `Tensor memory holds ${[...new Set(this.held)].filter((h) => h).join(", ") || "nothing"}`);
    if (!event) return;
    const now = this.waits.findLastIndex((n) => n <= event.waits);
    g.strokeStyle = colours.fg;
    g.strokeRect(chart.x + now * wide, chart.y, wide, chart.h + ROLES.length * line);
    g.strokeStyle = kindColour(event.kind);
    g.lineWidth = 3;
    for (const [row, rows, column, count] of event.holder ? event.rects : []) {
      g.strokeRect(map.x + column * map.w / COLUMNS + 1.5, map.y + row * map.h / LANES + 1.5,
                   count * map.w / COLUMNS - 3, rows * map.h / LANES - 3);
    }
  }

  point(event) {
    const bounds = this.canvas.getBoundingClientRect(), { map, time: chart } = this;
    const x = event.clientX - bounds.left, y = event.clientY - bounds.top;
    const column = Math.floor((x - map.x) / map.w * COLUMNS), lane = Math.floor((y - map.y) / map.h * LANES);
    if (column >= 0 && column < COLUMNS && lane >= 0 && lane < LANES) {
      return showTip(event.clientX, event.clientY, `lane ${lane}, column ${column}: ${this.held[column] ?? "nothing yet"}`);
    }
    const waits = this.waits[Math.floor((x - chart.x) / chart.w * this.waits.length)];
    const role = Math.floor((y - chart.y - chart.h) / chart.line);
    const words = this.events.filter((e) => e.waits === waits && (role < 0 ? e.holder && e.kind : e.role === role))
      .map((e) => `${["reads", "writes", "adds to"][e.kind]} ${e.holder ? columnsOf(e) : this.run.elements(e)}`);
    if (!words.length || y < chart.y) return hideTip();
    showTip(event.clientX, event.clientY, `${ROLES[role] ?? "columns"}: ${[...new Set(words)].join("; ")}`);
  }
}
// "P0, columns 64 to 127"
function columnsOf({ holder, rects: [[, , first, count]] }) { return `${holder}, ${span("column", first, count)}`; }

// --- the source line ----------------------------------------------------------------------------

function codeOf(run, frames, around) {
  const { path, number } = run.lines[frames.at];
  const text = run.sources[path];
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
              : /^(wgmma|tcgen05.mma)$/.test(event.how)
                ? `The tensor cores (${event.how}) read the whole tile; no warp makes a request.`
              : event.holder ? "A warp moves columns of its 32 lanes of tensor memory, which has neither sectors nor banks."
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

// --- the bytes of each buffer -------------------------------------------------------------------

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

function showTable(node, run, counters, current) {
  const kinds = run.final.requested()[2] > 0 ? [0, 1, 2] : [0, 1];
  const head = make("tr", {}, make("th", {}, "buffer"), ...kinds.map((k) =>
    make("th", {}, ["read, B", "written, B", "atomic, B"][k])),
    make("th", { title: "requested bytes divided by the size of the buffer" }, "per element"));
  const row = (name, so, size) => {
    const lit = current && run.placeOf(current).space === "global" && run.placeOf(current).name === name;
    return make("tr", { "data-buffer": name, class: !size ? "total" : lit ? "now" : null },
      make("td", {}, name || "sum"),
      ...kinds.map((k) => make("td", { class: so[k] ? KINDS[k] : "dim", "data-bytes": so[k] }, exact(so[k]))),
      make("td", {}, size ? times(total(so) / size) : ""));
  };
  const rows = [...counters.buffers].map(([name, so]) => row(name, so, run.buffers.get(name).bytes));
  const counted = countedOf(run), done = counters.next === run.byEnd.length;
  const equal = [...new Set([...counters.buffers.keys(), ...counted.keys()])].every((name) =>
    (counted.get(name) || [0, 0, 0]).every((n, k) => n === (counters.buffers.get(name) || [0, 0, 0])[k]));
  node.replaceChildren(make("table", {}, make("thead", {}, head),
                            make("tbody", {}, ...rows, row("", counters.requested(), 0))),
    make("p", { class: `dim checked ${done ? equal ? "equal" : "differs" : ""}` }, !done
      ? `of ${exact(total(run.final.requested()))} B over the whole run`
      : equal ? "✓ equal to the simulator's count, to the byte" : "differs from the simulator's count"));
}

// --- one side: a run at one moment --------------------------------------------------------------

class Side {
  constructor(node) {
    this.node = node;
    this.room = node.querySelector(".room");
    this.picture = new Picture(this.room.querySelector("canvas"));
    this.follow = 0;
  }

  show(run) {
    this.run = run;
    this.room.classList.toggle("ranks", !!run.ranks);
    if (run.ranks) {
      this.steps = run.rows;
      return;
    }
    this.counters = new Counters(run);
    this.steps = run.steps(this.follow);
    this.picture.show(run);
  }

  resize() {
    if (!this.run.ranks) this.picture.layout();
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

  set(fraction) {
    if (this.run.ranks) {
      this.text = showRanks(this.room, this.run, Math.round(fraction * (this.steps.length - 1)));
    } else {
      const index = Math.round(fraction * (this.steps.length - 1));
      const step = this.step = this.steps[index], run = this.run, event = step.event;
      this.counters.advance(step.time);
      const middle = event ? (event.start + event.end) / 2 : -1;
      const others = event ? run.kernels[step.kernel].blocks.filter((b) => b.block !== event.block)
        .map((b) => b.events.find((e) => e.start <= middle && middle < e.end)).filter((e) => e) : [];
      const { holds, tile } = this.state(index);
      this.holds = holds;
      this.picture.tile = tile;
      this.picture.kernel = step.kernel;
      this.picture.draw(this.counters, event, others);
      this.text = this.sentence(step, holds);
      this.picture.canvas.setAttribute("aria-label", this.text);
    }
    this.node.querySelector(".at").textContent = this.text;
  }

  // Rows are always those of the buffer in device memory, also of its tile in shared memory.
  sentence(step, holds) {
    const run = this.run, event = step.event;
    if (step.time < 0) return "Nothing has moved yet.";
    const who = run.kernels.length > 1 ? `${run.kernelName(step.kernel)}: ` : "";
    if (!event) return `${who}the other blocks have finished, too.`;
    const place = run.placeOf(event), shared = place.space === "shared";
    const what = place.space === "tensor"
      ? `${columnsOf(event)} of ${span("lane", event.rects[0][0], event.rects[0][1])}, in tensor memory`
      : !shared ? run.elements(event)
      : event.kind === 1 ? run.held(place, run.source(event)).long : run.heldBy(event, holds);
    const where = !shared ? "" : (what.includes(",") ? "," : "") + ` ${["from", "to", "in"][event.kind]} ` +
      (what === COMPUTED ? `${place.name} in ` : "") + "shared memory";
    const how = ["load", "store", "atomic"].includes(event.how) ? "" : ` by ${event.how}`;
    return `${who}block ${run.blockName(step.kernel, event.block)} ` +
           `${["reads", "writes", "adds to"][event.kind]} ${what}${where}${how}: ${exact(event.bytes)}\u00a0B`;
  }
}

// --- several ranks: rows of Q down, keys across; a hop at a time --------------------------------

const fromRank = (rank, hop, R) => (rank - hop + R) % R;
const mostOf = (run, hop) => Math.max(...run.scores.map((mine) => mine[hop]));  // what the slowest has to do

function showRanks(room, run, hop) {
  const R = run.ranks, n = run.n;
  const colour = (rank) => `hsl(${Math.round(rank * 360 / R + 210) % 360} 60% 50%)`;
  const path = (rank, from) => run.rows[rank].flatMap(([top, bottom]) => run.rows[from].map(([left, right]) =>
    !run.causal || right <= top ? `M${left} ${top}H${right}V${bottom}H${left}Z`
      : left === top ? `M${left} ${top}L${right} ${bottom}H${left}Z` : "")).join("");
  const parts = run.rows.flatMap((_, rank) => run.rows.map((_, h) => `<path fill="${colour(rank)}" ` +
    `fill-opacity="${h < hop ? .35 : h === hop ? 1 : .08}" d="${path(rank, fromRank(rank, h, R))}"/>`));
  const lanes = run.scores.map((mine, rank) => `<b>${rank}</b><div style="grid-template-columns:` +
    `${mine.map((_, h) => `${mostOf(run, h)}fr`).join(" ")}">` + mine.map((scores, h) =>
      `<i${h === hop ? ' class="now"' : ""}><u style="width:${100 * scores / mostOf(run, h)}%;` +
      `background:${colour(rank)}"></u></i>`).join("") + "</div>");
  room.querySelector("div").innerHTML = `<svg viewBox="-4 -4 ${n + 8} ${n + 8}">${parts.join("")}` +
    `<rect width="${n}" height="${n}"/></svg><div class="lanes14">${lanes.join("")}</div>`;
  const idle = run.scores.flatMap((mine, rank) => (mine[hop] < mostOf(run, hop) ? [rank] : []));
  return `Hop ${hop} of ${R - 1}: ` + (idle.length
    ? `rank${idle.length > 1 ? "s" : ""} ${idle.join(", ")} wait${idle.length > 1 ? "" : "s"}.` : "no rank waits.");
}

// Of the ranks' time, the share in which they compute, if time goes with scores.
function busy(run) {
  const all = run.rows.map((_, hop) => mostOf(run, hop)).reduce((a, b) => a + b);
  return total(run.scores.flat()) / run.ranks / all;
}

// --- what both sides cost at full size ----------------------------------------------------------

function versus(a, b, [less, more, same]) {
  if (Math.abs(a / b - 1) < .015) return same;
  return a > b ? `${times(a / b)} ${less}` : `${times(b / a)} ${more}`;
}
// What a series has of the variant that a replay shows: of the pass that its step is about.
function measuredOf(series, run, causal = run.problem.causal) {
  const both = series.runs.some((r) => r.causal !== series.runs[0].causal);
  const found = series.runs.filter((r) => r.id === `${run.step.slice(0, 2)} ${run.variant}` && !r.gpu &&
                                          (!both || r.causal === causal));
  return found.find((r) => r.pass === "backward") || found.find((r) => r.pass === "forward");
}
function figure(what, words, colour, labels, values, format, more = []) {
  const most = Math.max(...values);
  return make("div", {}, make("p", { class: "dim" }, what), make("p", { class: "big" }, versus(...values, words)),
    ...values.flatMap((value, i) => {
      const bar = make("div", { class: `bar ${colour}` }, make("i"));
      bar.firstChild.style.width = `max(2px, ${100 * value / most}%)`;
      return [make("p", { class: "dim" }, `${labels[i]}: ${format(value)}`), bar];
    }), ...more);
}
function showFigures(node, sides, labels, note) {
  const runs = sides.map((s) => s.run);
  let parts;
  if (runs[0].ranks) {
    parts = [figure("share of the time in which the ranks compute", ["less idle", "less idle", "equally busy"],
                    "read", labels, runs.map(busy), (x) => `${Math.round(100 * x)}%`)];
  } else {
    const [full, mine] = PAGE.series.map((series) => runs.map((run) => measuredOf(series, run)));
    const known = (both) => both?.[0]?.hbm && both[1]?.hbm && both[0].pass === both[1].pass;
    const beside = (words, what, format) => (known(mine) ? [make("p", { class: "dim" }, `${own.name}: ` +
      `${versus(...mine.map((r) => r[what]), words)}, ${mine.map((r) => format(r[what])).join(" → ")}`)] : []);
    if (known(full)) {
      // The prediction of a run with a mask is no match for a measured one without it.
      const unmasked = runs.map((run) => measuredOf(PAGE.series[0], run, false));
      const measured = (both) => known(both) && both.filter((f) => f.hbm_kind === "measured").length;
      const instead = measured(unmasked) > measured(full), moved = instead ? unmasked : full;
      const guessed = moved.map((f) => f.hbm_kind === "predicted");
      const kind = (guessed[0] === guessed[1] ? moved[0].hbm_kind : `${labels[guessed[0] ? 0 : 1]} predicted`) +
        (instead ? ", without the mask" : "");
      const [less, took] = [["fewer bytes", "more bytes", "the same bytes"], ["less time", "more time", "the same time"]];
      parts = [
        figure(`HBM per head, ${PAGE.series[0].name}, ${kind}`, less, "write", labels, moved.map((f) => f.hbm), bytes,
               beside(less, "hbm", bytes)),
        figure(`time of the ${full[0].pass}, ${full[0].heads} heads, ${full[0].time_kind}`, took, "read", labels,
               full.map((f) => f.ms), time, beside(took, "ms", time))];
    } else {
      const sums = runs.map((run) => total(run.final.requested()));
      parts = [figure("bytes that threads request, this run, simulated", ["fewer bytes", "more bytes", "the same bytes"],
                      "write", labels, sums, bytes)];
      if (sides[0].picture.masked) {
        parts.unshift(figure("tiles that the forward visits", ["fewer tiles", "more tiles", "as many tiles"], "read", labels,
                             runs.map((run) => run.tilesOf(0).length), exact));
      }
    }
  }
  const ns = [...new Set(runs.map((run) => run.problem?.n))];
  const size = runs[0].ranks ? "" : `Drawn: one head, N\u00a0=\u00a0${ns.join(" and ")}.`;
  node.replaceChildren(...parts, make("p", { class: "note" }, note), make("p", { class: "note dim" }, size));
}

// --- the series: as a ladder, below a roof, as a table --------------------------------------------

const own = PAGE.series[1];
const DRAWN = own ? [PAGE.beside ?? PAGE.series[0], own] : PAGE.series;  // of one problem, where there is one
const results = (series) => series.cells.filter((row) => row.length > 1);
const percent = (x) => `${+(100 * x).toPrecision(2)}%`;
const speed = (rate) => (rate < 1e15 ? (rate / 1e12).toPrecision(3) : exact(rate / 1e12));
const numberOf = (run) => run.id.split(" ")[0];

// A step's result in each pass is its last variant: {"06 forward": run}. Those apart have a problem of their own.
function rungsOf(series) {
  const causal = series.runs.every((r) => r.causal);
  const runs = series.runs.filter((r) => (r.apart || r.causal === causal) && r.pass !== "prepare");
  return new Map(runs.map((r) => [`${r.apart ? r.id : numberOf(r)} ${r.pass}`, r]));
}

const PASSES = { forward: "forward", backward: "backward", decode: "decode", latent: "latent", masks: "masks, forward",
                 "masks bwd": "masks, backward" };

function listed(runs) { return [...new Set(runs.map(numberOf))].sort().join(", "); }

// Links lead to the book, where this page is in it or beside it; never to raw Markdown.
const BOOK = PAGE.book ?? (/^http|\/html\/docs\/explorer\//.test(location.href) ? "../../" : null);
function chapterOf(number, ...inside) {
  const href = BOOK && PAGE.steps[number] && `${BOOK}steps/${PAGE.steps[number].folder}/index.html`;
  return href ? make("a", { href }, ...inside) : make("span", {}, ...inside);
}

// "✓ All 61 results are right. HBM ÷97 from 01 to 06, then speed ×18 from 06 to 12."
function verdictOf(series) {
  const failed = (series.texts ?? []).filter(([, , ok]) => !ok).map(([name]) => name);
  const wrong = failed.length ? failed : series.wrong;
  const words = series !== own ? "" : wrong.length ? `✗ Wrong or failed: ${wrong.join(", ")}. `
    : results(own).length === 1 ? "✓ The result is right. " : `✓ All ${results(own).length} results are right. `;
  const found = rungsOf(series), from = found.get("01 forward"), via = found.get("06 forward");
  const last = [...found.values()].filter((r) => r.pass === "forward" && r.type !== "fp32" && !r.gpu).at(-1);
  const said = [];
  if (from?.hbm && via?.hbm) said.push(`HBM bytes ÷${Math.round(from.hbm / via.hbm)} from 01 to 06`);
  if (via?.rate && last?.rate) said.push(`speed ×${Math.round(last.rate / via.rate)} from 06 to ${numberOf(last)}`);
  const name = series.name[0].toUpperCase() + series.name.slice(1);
  return `${words}${name}: ${said.join(", then ") || series.problem}.`;
}

function tipOf(run, series) {
  const apart = run.apart ?? (run.gpu && series.name.split(", ")[1]);
  const where = run.gpu ? `${run.gpu}, ${apart}` : apart ?? series.name;
  const parts = [`${run.id}, ${PASSES[run.pass]}, ${where}`, run.hbm && `HBM ${bytes(run.hbm)} per head, ${run.hbm_kind}`,
                 run.ms && `${time(run.ms)} for ${run.heads} heads, ${run.time_kind}`,
                 run.limit && `limited by ${run.limit}`];
  return parts.filter((x) => x).join("; ");
}
// Shows its words when it is pointed at, and to the keyboard and a screen reader.
function telling(node, words) {
  node.setAttribute("aria-label", words);
  node.setAttribute("role", "img");
  node.setAttribute("tabindex", 0);
  const tell = () => {
    const at = node.getBoundingClientRect();
    showTip(at.left + at.width / 2, at.top, words);
  };
  for (const event of ["pointerenter", "focus"]) node.addEventListener(event, tell);
  for (const event of ["pointerleave", "blur"]) node.addEventListener(event, hideTip);
  return node;
}

// Linear bars: bytes on a scale of each series, whose problems differ; speed on one of all.
function showLadder(node) {
  const all = DRAWN.map(rungsOf);
  const keys = [...new Set(all.flatMap((rungs) => [...rungs.keys()]))];
  const most = (i, pass, what) => Math.max(...[...all[i].values()].filter((r) => r.pass === pass).map((r) => r[what] ?? 0));
  const bars = (key, pass, what, words, top) => make("div", {}, ...all.map((rungs, i) => {
    const run = rungs.get(key), value = run?.[what];
    if (!value) return make("div", { class: "bar" });
    const bar = make("i");
    bar.style.width = `max(2px, ${100 * value / top(i)}%)`;
    const guess = run.gpu && what === "rate";
    const row = make("div", { class: `bar ${what === "hbm" ? "write" : "read"} s${i}${guess ? " guess" : ""}` },
                     make("b", {}, bar), make("span", {}, `${guess ? "~" : ""}${words(value)}`));
    return telling(row, tipOf(run, DRAWN[i]));
  }));
  const rung = (key) => {
    const run = all.map((rungs) => rungs.get(key)).find((r) => r), { pass } = run, number = numberOf(run);
    const step = PAGE.steps[number], variant = run.id.slice(number.length + 1);
    const idea = step && pass === "forward" && variant === step.result && step.short || run.idea || step?.ideas[variant] || "";
    const name = run.apart ? run.id : `${number} ${step?.name ?? ""}`;
    const type = idea.startsWith(run.type) ? "" : `${run.type}. `;
    const told = `${run.gpu ? `${run.gpu}, estimated. ` : ""}${type}${idea}`;
    return [make("div", { class: "who" }, chapterOf(number, make("b", {}, name)), make("span", { class: "dim", title: told }, ` ${told}`)),
            bars(key, pass, "hbm", bytes, (i) => most(i, pass, "hbm")),
            bars(key, pass, "rate", speed, () => Math.max(...all.map((_, i) => most(i, pass, "rate"))))];
  };
  const group = (pass) => {
    const runs = all.flatMap((rungs) => [...rungs]).filter(([, r]) => r.pass === pass);
    const mine = keys.filter((key) => runs.some(([other]) => other === key)).sort();
    const apart = runs.find(([, r]) => r.apart)?.[1].apart;
    return mine.length ? [make("h3", { title: apart }, PASSES[pass], ...apart ? [make("span", { class: "dim" }, ` ${apart}`)] : []),
                          make("h3", {}, "HBM per head"), make("h3", {}, "TFLOP/s"), ...mine.flatMap(rung)] : [];
  };
  node.replaceChildren(make("div", { class: "rungs" }, ...Object.keys(PASSES).flatMap(group)),
                       make("p", { class: "dim" }, aboutLadder()));
}

function aboutLadder() {
  const full = DRAWN[0], guessed = [...rungsOf(full).values()].filter((r) => r.hbm_kind === "predicted");
  return (own ? `Upper bars: ${full.name}. Lower bars: ${own.name}, with a scale of its own for bytes. ` : "") +
    (guessed.length ? `HBM of ${listed(guessed)} is predicted. ` : "") +
    (full.runs.some((r) => r.gpu) ? "~: estimated, never measured. " : "") +
    "Times of 06's backward and of 07 to 15 are in turns with the libraries' kernels, the others alone.";
}

const SVG = $("theme").firstElementChild.namespaceURI;
function drawn(tag, attributes, ...inside) {
  const node = document.createElementNS(SVG, tag);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...inside);
  return node;
}

function aboutRoofs() {
  const runs = DRAWN.flatMap((series) => [...rungsOf(series).values()]);
  const known = new Set(DRAWN.flatMap((series) => Object.values(series.roofs).flatMap((roof) =>
    Object.keys(roof).filter((type) => roof[type]))));
  const bare = runs.filter((r) => !known.has(r.type));
  const [first, second] = DRAWN;
  return (second ? `Filled: ${first.name}; open and dashed: ${second.name}. ` : "") +
    "Under the slope HBM is the limit, under a level line the type's peak. FLOPs are those executed; the ladder " +
    "counts by FlashAttention's convention." +
    (runs.some((r) => r.gpu) ? " Open, with ~: estimated; 16 is for a B200, which has other roofs." : "") + (bare.length ? ` No ${bare[0].type} peak was measured for ${listed(bare)}.` : "");
}

// FLOPs per byte of HBM and per second, as executed.
function showRoofline(node) {
  node.replaceChildren();
  const width = node.clientWidth - 24, height = node.clientHeight - 22;
  if (width < 120 || height < 120) return;  // a window without room
  const left = 50, right = width - 22, top = 14, bottom = height - 36;
  const points = DRAWN.flatMap((series, s) => [...rungsOf(series).values()]
    .filter((r) => r.intensity && r.executed).map((run) => ({ run, s, series })));
  const used = new Set(points.map((p) => p.run.type));
  const roofs = DRAWN.flatMap((series, s) => Object.entries(series.roofs).flatMap(([name, roof]) =>
    [...used].filter((type) => roof[type]).map((type) => ({ s, name, type, hbm: roof.hbm, peak: roof[type] }))));
  const decades = (values) => {  // with some room left of the smallest
    const low = Math.log10(Math.min(...values));
    return [Math.min(Math.floor(low), low - .15), Math.ceil(Math.log10(Math.max(...values)))];
  };
  const xs = decades([...points.map((p) => p.run.intensity), ...roofs.map((r) => r.peak / r.hbm)]);
  const ys = decades([...points.map((p) => p.run.executed), ...roofs.map((r) => r.peak)]);
  const x = (v) => left + (right - left) * (Math.log10(v) - xs[0]) / (xs[1] - xs[0]);
  const y = (v) => bottom - (bottom - top) * (Math.log10(v) - ys[0]) / (ys[1] - ys[0]);
  const words = (at, down, text, more = {}) => drawn("text", { x: at, y: down, ...more }, text);
  const parts = [], taken = [];
  for (let i = Math.ceil(xs[0]); i <= xs[1]; ++i) {
    parts.push(drawn("path", { class: "grid", d: `M${x(10 ** i)} ${top}V${bottom}` }),
               words(x(10 ** i), bottom + 15, exactly(10 ** i), { "text-anchor": "middle", class: "dim" }));
  }
  for (let i = Math.ceil(ys[0]); i <= ys[1]; ++i) {
    parts.push(drawn("path", { class: "grid", d: `M${left} ${y(10 ** i)}H${right}` }),
               words(left - 5, y(10 ** i) + 4, exactly(10 ** (i - 12)), { "text-anchor": "end", class: "dim" }));
  }
  parts.push(words((left + right) / 2, height - 5, "FLOP per byte of HBM", { "text-anchor": "middle" }),
             words(left + 5, top + 10, "TFLOP/s, executed"));
  const place = (size, at, down, far) => {  // the nearest free place around a point
    for (let reach = far; reach < 90; reach += 7) {
      for (let turn = 0; turn < 12; ++turn) {
        const angle = turn * Math.PI / 6, c = Math.cos(angle);
        const box = [at + reach * c - (c < -.3 ? size : Math.abs(c) <= .3 ? size / 2 : 0), down + reach * Math.sin(angle) - 6,
                     size, 13];
        const free = taken.every((o) => box[0] > o[0] + o[2] || o[0] > box[0] + box[2] || box[1] > o[1] + o[3] || o[1] > box[1] + box[3]);
        if (free && box[0] > left && box[0] + size < width && box[1] > top && box[1] + 13 < bottom) {
          taken.push(box);
          return [...box, reach];
        }
      }
    }
    return [at + far, down - 6, size, 13, far];
  };
  for (const { s, type, hbm, peak } of roofs) {
    const low = Math.max(10 ** xs[0], 10 ** ys[0] / hbm);
    parts.push(drawn("path", { class: `roof ${type} s${s}`, d: `M${x(low)} ${y(low * hbm)}L${x(peak / hbm)} ${y(peak)}H${right}` }));
    taken.push([x(peak / hbm), y(peak) - 2, right - x(peak / hbm), 4]);
    if (roofs.some((r) => r.s < s && r.type === type)) continue;
    taken.push([right - 80, y(peak) - 18, 80, 14]);
    parts.push(words(right - 3, y(peak) - 5, `${type} ${speed(peak)}`, { "text-anchor": "end", class: type }));
  }
  points.forEach(({ run }) => taken.push([x(run.intensity) - 5, y(run.executed) - 5, 10, 10]));
  for (const { run, s, series } of points) {
    const [cx, cy] = [x(run.intensity), y(run.executed)];
    const peaks = roofs.filter((r) => r.type === run.type && !run.gpu).map((r) => Math.min(r.peak, r.hbm * run.intensity));
    const share = peaks.length ? `; ${percent(run.executed / Math.max(...peaks))} of its roof` : "";
    const of = run.apart ? run.id : numberOf(run);
    const text = `${run.gpu ? "~" : ""}${of}${PASSES[run.pass].endsWith("backward") ? " bwd" : ""}`, size = 7 * text.length;
    const [lx, ly, , , reach] = place(size, cx, cy, 9);
    if (reach > 16) {
      parts.push(drawn("path", { class: "grid", d: `M${cx} ${cy}L${lx + size / 2} ${ly + 6}` }));
    }
    parts.push(telling(drawn("circle", { class: `${run.type} s${run.gpu ? 1 : s}`, cx, cy, r: 4.5 }), `${tipOf(run, series)}; ` +
      `${speed(run.executed)} TFLOP/s at ${+run.intensity.toPrecision(3)} FLOP per byte${share}`),
      words(lx, ly + 10, text));
  }
  node.replaceChildren(drawn("svg", { width, height, role: "group", "aria-label": "Roofline" }, ...parts));
}
function exactly(x) { return String(+x.toPrecision(1)); }

function showRuns(node) {
  const series = own ?? PAGE.series[0];
  const width = series.head.length;
  const cells = (tag, row) => row.length < width ? make("tr", {}, make("th", { colspan: width }, row[0])) :
    make("tr", {}, ...row.map((text, i) => make(tag, {
      class: (/^(WRONG|not checkable)$/.test(text) ? "differs" : "") + (series.less.includes(i) ? " less" : "") }, text)));
  const has = (word) => series.head.some((title) => title.includes(word));
  const told = (has("request") ? "Requests are counted by the simulator, or a GPU. " : "") +
    (has("estimate") ? "An estimated time is a model's, never a measurement. " : "") +
    (series.cells.flat().includes("-") ? "-: neither counted nor measured. " : "");
  node.replaceChildren(
    make("p", { class: "dim" }, `${series.problem}. ${told}${series.notes.map((note) => `${note}.`).join(" ")}`),
    make("table", {}, make("thead", {}, cells("th", series.head)),
         make("tbody", {}, ...series.cells.map((row) => cells("td", row)))),
    ...(series.texts ?? []).map(([name, text, ok]) => make("details", { open: !ok },
      make("summary", { class: !ok && "differs" }, name), make("pre", { tabindex: 0 }, text))));
}

// --- the phases of a program's mbarriers, step by step -------------------------------------------

class Barriers {
  constructor({ path, source, steps }) {
    Object.assign(this, { path, source, steps });
    this.names = [...new Set(steps.map((step) => step.barrier))].sort();
    this.whos = [...new Set(steps.map((step) => this.who(step)))].filter((who) => who).sort();
    const state = new Map(), waits = new Map();  // by barrier; by who, the barrier
    this.after = steps.map((step) => {
      const before = state.get(step.barrier), who = this.who(step);
      step.completes = before ? step.phase - before.phase : 0;
      state.set(step.barrier, { count: before?.count ?? step.arrivals, ...step });
      if (step.what === "wait") waits.set(who, step.barrier);
      if (step.what === "pass") waits.delete(who);
      return { state: new Map(state), waits: new Map(waits) };
    });
  }

  // "warp 0", "thread 64"
  who({ threads: [first, count] }) {
    return first < 0 ? "" : count > 1 ? `warp ${Math.floor(first / 32)}` : `thread ${first}`;
  }

  sentence(at) {
    const step = this.steps[at], { barrier, phase, arrivals, threads: [, count] } = step, one = count > 1 ? "" : "s";
    const who = (count > 1 ? `the ${count} threads of ` : "") + this.who(step);
    const lacks = [arrivals && `${arrivals} arrival${arrivals > 1 ? "s" : ""}`, step.bytes && `${step.bytes} bytes`];
    const then = step.completes ? `: phase ${phase - 1} is complete, phase ${phase} begins`
      : `: phase ${phase} lacks ${lacks.filter((x) => x).join(" and ")}`;
    return `${at + 1} of ${this.steps.length}: ` + {
      init: `${who} makes ${barrier} a barrier of ${arrivals} arrival${arrivals > 1 ? "s" : ""} per phase`,
      wait: `${who} wait${one} at ${barrier} for the end of phase ${phase}, parity ${phase & 1}`,
      pass: `${who} pass${one && "es"} ${barrier}: phase ${phase - 1} is complete` + (phase ? "" : ", in a fresh barrier"),
      arrive: `${who} arrive${one} at ${barrier}${then}`,
      bytes: `the bytes of a copy land${then}`,
    }[step.what] + ".";
  }

  // Of each barrier its phases, of each group of threads its waits: [from, to, words, odd].
  lanes() {
    const end = this.steps.length;
    const phases = (name) => {
      const found = [];
      this.steps.forEach((step, at) => {
        if (step.barrier !== name || (found.length && !step.completes)) return;
        if (found.length) found.at(-1)[1] = at + 1;
        found.push([found.length ? at + 1 : at, end, `${step.phase}`, step.phase & 1]);
      });
      return found;
    };
    const waits = (who) => {
      const found = [];
      this.steps.forEach((step, at) => {
        if (this.who(step) !== who) return;
        if (step.what === "wait") found.push([at, end, step.barrier, 2]);
        if (step.what === "pass" && found.at(-1)?.[1] === end) found.at(-1)[1] = at;
      });
      return found;
    };
    return [...this.names.map((name) => [name, phases(name)]), ...this.whos.map((who) => [who, waits(who)])];
  }

  show(node) {
    node.replaceChildren(make("p", { class: "say", role: "status" }), make("div", { class: "phases" }), make("table"),
                         make("div"));
    node.classList.add("barriers");
    this.node = node;
  }

  draw(at) {
    const [say, chart, table, source] = this.node.children, step = this.steps[at], { state, waits } = this.after[at];
    say.textContent = this.sentence(at);
    const width = chart.clientWidth, left = 62, high = 20, lanes = this.lanes(), x = (i) => left + i * (width - left) / this.steps.length;
    const parts = lanes.flatMap(([name, spans], row) => [
      drawn("text", { x: 0, y: row * high + 14 }, name),
      ...spans.flatMap(([from, to, words, kind]) => {
        const room = x(to) - x(from) - 2, text = kind < 2 && room > 60 ? `phase ${words}` : words;
        return [drawn("rect", { class: ["even", "odd", "wait"][kind], x: x(from), y: row * high + 2, width: Math.max(1, room + 1),
                                height: high - 4 }),
                ...(room > 6.5 * text.length ? [drawn("text", { class: "in", x: x(from) + 3, y: row * high + 14 }, text)] : [])];
      })]);
    const tall = lanes.length * high;
    parts.push(drawn("rect", { class: "later", x: x(at + 1), y: 0, width: Math.max(0, width - x(at + 1)), height: tall }),
               drawn("rect", { class: "now", x: x(at), y: 1, width: Math.max(3, x(1) - x(0)), height: tall - 2 }));
    chart.replaceChildren(drawn("svg", { width, height: tall, role: "img", "aria-label": "Phases of the barriers, and waits" }, ...parts));
    const row = (name) => {
      const now = state.get(name);
      const who = [...waits].filter(([, barrier]) => barrier === name).map(([who]) => who).join(", ");
      return make("tr", { class: name === step.barrier ? "now" : null }, ...[name, ...(now
        ? [`${now.phase}`, `${now.phase & 1}`, `${now.arrivals} of ${now.count}`, `${now.bytes}`, who || "-"] : Array(5).fill(""))]
        .map((text) => make("td", {}, text)));
    };
    const heads = ["barrier", "phase", "parity", "arrivals missing", "bytes missing", "who waits"];
    table.replaceChildren(make("thead", {}, make("tr", {}, ...heads.map((head) => make("th", {}, head)))),
                          make("tbody", {}, ...this.names.map(row)));
    const run = { lines: [{ path: this.path, number: step.line || this.shown || 1 }], sources: { [this.path]: this.source } };
    this.shown = run.lines[0].number;
    source.replaceChildren(...codeOf(run, { at: 0, mark: step.line ? "at" : "", note: step.line ? "" : ": TMA, since" }, 6));
  }
}
let barriers = null;
async function showBarriers(node) {
  barriers ??= new Barriers(await fileOf("barriers"));
  if (state.tab !== "barriers") return;  // the reader has chosen another meanwhile
  barriers.show(node);
  player.steps = barriers.steps.length - 1;
  player.put(player.at);
  keepAddress();
}

const TABS = { ladder: showLadder, roofline: showRoofline, runs: showRuns, barriers: showBarriers };
async function showTab(tab, at = 0) {
  state.tab = tab;
  document.body.classList.toggle("tab", !!tab);
  document.body.classList.toggle("stepped", tab === "barriers");
  $("tab").classList.remove("barriers");
  markIdea();
  if (!tab) return;
  player.stop();
  player.at = at;
  setAddress(tab);
  $("about").textContent = tab === "roofline" ? aboutRoofs() : tab === "barriers" ? aboutBarriers : verdictOf(own ?? PAGE.series[0]);
  $("controls").hidden = true;
  await TABS[tab]($("tab"));
  document.body.ariaBusy = "false";
}
const aboutBarriers = "A thread copies tiles into two stages, 64 others add them up: the phases of their four mbarriers, and who " +
  "waits (docs/asynchrony). The order is the simulator's, one of those that a GPU may have.";

// --- the replay ---------------------------------------------------------------------------------

const WHOLE = 15;  // seconds

class Player {
  constructor(show) {
    this.show = show;
    this.at = 0;
    this.steps = 1;
    this.playing = false;
    $("play").addEventListener("click", () => this.toggle());
    $("scrub").addEventListener("input", () => this.go(+$("scrub").value / 1000));
    document.addEventListener("keydown", (e) => this.key(e));
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.matches("select, pre, input[type=checkbox]")) return;
    if (event.key === " " && event.target.matches("button, a")) return;
    const far = (event.shiftKey ? 10 : 1) / this.steps;
    const actions = { ArrowLeft: () => this.go(this.at - far), ArrowRight: () => this.go(this.at + far),
                      Home: () => this.go(0), End: () => this.go(1), " ": () => this.toggle() };
    if (!actions[event.key]) return;
    event.preventDefault();
    actions[event.key]();
  }

  go(at) {
    this.put(at);
    this.stop();  // the address says where
  }

  put(at) {
    this.at = Math.max(0, Math.min(at, 1));
    $("scrub").value = Math.round(1000 * this.at);
    $("scrub").setAttribute("aria-valuetext", `${Math.round(100 * this.at)}%`);
    this.show(this.at);
  }

  toggle() {
    if (this.playing) return this.stop();
    if (this.at >= 1) this.at = 0;
    this.playing = true;
    $("play").setAttribute("aria-label", "Pause");
    let before = performance.now();
    const tick = (now) => {
      if (!this.playing) return;
      this.put(this.at + (now - before) / 1000 / Math.min(WHOLE, this.steps));
      before = now;
      if (this.at >= 1) this.stop();
      else requestAnimationFrame(tick);
    };
    requestAnimationFrame(tick);
  }

  stop() {
    this.playing = false;
    $("play").setAttribute("aria-label", "Play");
    keepAddress();
  }
}

// --- the page -----------------------------------------------------------------------------------

const sides = ["a", "b"].map((id) => new Side($(id)));
const onChip = new OnChip($("chip"));
const tensorMemory = new TensorMemory($("tensor"));
const loaded = new Map();
// What is shown: two variants, "01 naive", and their problem. The address says it: #4 is an idea, #06 a step beside its
// parent, #04.fused-06.swapped any two; then &n=512&causal&at=40 (percent)&block=1&more. #ladder is a tab.
const state = { idea: 0, pair: [], n: 256, causal: false, m: 0, mask: "", at: 0, block: 0, more: false, side: 1, tab: "" };

function stepOf(id) { return PAGE.steps[id.slice(0, 2)]; }
// A step's result is its idea in the README's words.
function ideaOf(id) {
  const step = stepOf(id), variant = id.slice(3);
  return variant === step.result && step.short || step.ideas[variant];
}
function runsOf(id) { return stepOf(id).runs.filter((run) => run.variant === id.slice(3)); }

// What NN.js, or barriers.js, holds.
function fileOf(name) {
  if (!loaded.has(name)) {
    loaded.set(name, new Promise((resolve, reject) => {
      if (window.flashSteps[name]) return resolve({ ...window.flashSteps[name], ready: new Map() });
      const script = make("script", { src: `${name}.js` });
      script.addEventListener("load", () => resolve({ ...window.flashSteps[name], ready: new Map() }));
      script.addEventListener("error", () => reject(new Error(`${name}.js is missing beside this page`)));
      document.head.append(script);
    }));
  }
  return loaded.get(name);
}

async function runOf(entry, id) {
  const step = await fileOf(id.slice(0, 2));
  if (!step.ready.has(entry.id)) {
    const data = step.runs[entry.id];
    step.sources = await (typeof step.sources === "string" ? unpack(step.sources) : step.sources);
    step.ready.set(entry.id, typeof data === "string" ? new Run({ ...await unpack(data), sources: step.sources }) : data);
  }
  return step.ready.get(entry.id);
}

// The run of a variant that is nearest to what was chosen.
function entryOf(id) {
  const score = (r) => (r.causal === state.causal) - 4 * Math.abs(Math.log(r.n / state.n)) + (r.smem === state.m) / 2 +
    (r.mask === state.mask);
  return runsOf(id).reduce((best, r) => (score(r) > score(best) ? r : best));
}

function show(fraction) {
  if (state.tab) return barriers?.draw(Math.round(fraction * (barriers.steps.length - 1)));
  sides.forEach((side) => side.set(fraction));
  $("status").textContent = sides.map((side) => side.text).join(" ");
  if (state.more) showMore();
}

let shownKernel = null;
function showMore() {
  const side = sides[state.side], { run, step } = side, { blocks } = run.kernels[step.kernel];
  const block = blocks[Math.min(side.follow, blocks.length - 1)];
  const key = `${run.step} ${run.variant} ${run.problem.n} ${run.problem.causal} ${step.kernel} ${block.block} ${$("more").clientWidth}`;
  if (shownKernel !== key) {
    onChip.show(run, step.kernel, side.picture.scale);
    tensorMemory.show(run, block);
  }
  shownKernel = key;
  onChip.draw(step.event, side.holds);
  tensorMemory.draw(step);
  $("chip-words").textContent = `Block ${run.blockName(step.kernel, block.block)}. ${run.registers || ""}`;
  showSource($("source"), run, step.event);
  showRequest($("warp"), run, step.event);
  showTable($("bytes"), run, side.counters, step.event);
}

const player = new Player(show);

function keepAddress() {
  if (state.tab) return state.tab === "barriers" && setAddress(`barriers&at=${Math.round(100 * player.at)}`);
  const { idea, pair, n, causal, m, mask, block, more } = state;
  const named = pair.map((id) => id.replace(" ", ".")).join("-");
  const words = [idea || named, n !== 256 && `n=${n}`, causal && "causal", m && `m=${m}`, mask && `mask=${encodeURIComponent(mask)}`,
                 `at=${Math.round(100 * player.at)}`, block && `block=${block}`, more && "more"];
  setAddress(words.filter((w) => w).join("&"));
}
function setAddress(words) {
  try { history.replaceState(null, "", `#${words}`); } catch { /* a frame of a notebook has no address */ }
}

// "04.fused" or "04": a variant, else the step's result; null: there is none.
function variantOf(word) {
  const [number, variant] = word.split(".");
  const step = PAGE.steps[number];
  if (!step) return null;
  return `${number} ${step.runs.some((r) => r.variant === variant) ? variant : step.result}`;
}

async function fromAddress() {
  const words = decodeURIComponent(location.hash.slice(1)).split("&");
  const given = Object.fromEntries(words.slice(1).map((w) => w.split("=")).map(([k, v = true]) => [k, v]));
  if (TABS[words[0]]) return showTab(words[0], +given.at / 100 || 0);
  const idea = PAGE.ideas[words[0] - 1] && /^\d$/.test(words[0]) ? +words[0] : 0;
  let pair = idea ? [...PAGE.ideas[idea - 1].pair] : words[0].split("-").map(variantOf);
  if (pair.some((id) => !id)) return choose({ idea: 1 });
  if (pair.length === 1) pair = [stepOf(pair[0]).before, pair[0]];
  const ranks = stepOf(pair[1]).size === "ranks";
  return choose({ idea, pair, n: +given.n || (ranks ? 4 : 256), m: +given.m || 0, mask: given.mask, block: +given.block || 0,
                  causal: ranks && words.length === 1 || !!given.causal, more: !!given.more },
                given.at === undefined ? idea ? undefined : .5 : +given.at / 100);
}

async function choose(changes, at) {
  showTab("");
  player.stop();
  Object.assign(state, changes);
  const idea = PAGE.ideas[state.idea - 1];
  if (idea && changes.idea) {
    Object.assign(state, { pair: idea.pair, n: changes.n || 256, causal: changes.causal || false, block: 0 });
    at ??= idea.at;
  }
  state.n = entryOf(state.pair[1]).n;  // the nearest that there is
  const wanted = state.pair, entries = wanted.map(entryOf);
  document.body.ariaBusy = "true";
  const runs = await Promise.all(entries.map((entry, i) => runOf(entry, wanted[i])));
  if (wanted !== state.pair) return;  // the reader has chosen others meanwhile
  state.mask = entries[1].mask ?? entries[0].mask;
  const labels = wanted.map((id) => (wanted[0].slice(0, 2) === wanted[1].slice(0, 2) ? id : id.slice(0, 2)));
  $("controls").hidden = !!idea;
  markIdea();
  $("about").textContent = idea ? idea.question : stepOf(wanted[1]).caption;
  sides.forEach((side, i) => {
    side.picture.masked = !!state.mask;
    side.follow = Math.min(state.block, runs[i].kernels ? Math.max(...runs[i].kernels.map((k) => k.blocks.length)) - 1 : 0);
    side.node.querySelector("h2").replaceChildren(chapterOf(wanted[i].slice(0, 2), `${stepOf(wanted[i]).name} (${wanted[i]})`));
    side.node.querySelector(".idea").textContent = idea ? idea.say[i] : ideaOf(wanted[i]);
    side.show(runs[i]);
  });
  if (!runs[0].ranks) {
    const hottest = Math.max(...runs.map((r) => r.hottest));  // one scale for both
    for (const side of sides) side.picture.hottest = hottest;
  }
  showFigures($("figures"), sides, labels, idea ? idea.note : "");
  fillControls(entries, runs);
  $("open").hidden = !!runs[0].ranks;
  if (runs[0].ranks) state.more = false;
  document.body.classList.toggle("details", state.more);
  $("open").setAttribute("aria-expanded", state.more);
  [...$("which").children].forEach((b, i) => (b.textContent = wanted[i]));
  chosen(state.side);
  player.steps = Math.max(...sides.map((s) => s.steps.length)) - 1;
  sides.forEach((side) => side.resize());
  player.put(at ?? player.at);
  keepAddress();
  document.body.ariaBusy = "false";
}

function markIdea() {
  const at = state.tab ? PAGE.ideas.length + 1 + Object.keys(TABS).indexOf(state.tab) : state.idea ? state.idea - 1 : PAGE.ideas.length;
  [...$("ideas").children].forEach((b, i) => b.toggleAttribute("aria-current", i === at));
}

function fillControls(entries, runs) {
  const options = (node, values, chosen) => {
    node.replaceChildren(...values.map(([value, words]) => make("option", { value, selected: value === chosen }, words)));
    node.parentNode.hidden = values.length < 2;
  };
  ["a", "b"].forEach((id, i) => $(`set-${id}`).value = state.pair[i]);
  const of = (key) => [...new Set(state.pair.flatMap((id) => runsOf(id)).map((r) => r[key]))].sort((a, b) => a - b);
  $("size").textContent = stepOf(state.pair[1]).size;
  const masks = runsOf(state.pair[1]).flatMap(({ mask }) => mask ?? []);  // of one N
  options($("set-n"), masks.length ? [] : of("n").map((n) => [n, n]), state.n);
  options($("set-m"), of("smem").map((m) => [m, m ? `${m / 1024} KB` : "its own"]), state.m);
  options($("set-mask"), masks.map((mask) => [mask, mask]), state.mask);
  $("set-causal").checked = state.causal;
  $("set-causal").parentNode.hidden = of("causal").length < 2 || masks.length > 0;
  const most = runs[1].kernels ? runs[1].kernels.reduce((a, b) => (b.blocks.length > a.blocks.length ? b : a)) : null;
  options($("set-block"), most ? most.blocks.map((b, i) => [i, runs[1].blockName(runs[1].kernels.indexOf(most), b.block)]) : [],
          state.block);
}

// Of which side the details are.
function chosen(at) {
  state.side = at;
  sides.forEach((side, i) => side.node.toggleAttribute("data-chosen", i === at));
  [...$("which").children].forEach((b, i) => b.toggleAttribute("aria-current", i === at));
}

function begin() {
  $("ideas").append(...PAGE.ideas.map((idea, i) => make("button", { type: "button", title: idea.question },
    make("b", {}, `${i + 1}`), make("span", {}, ` ${idea.name}`))),
    make("button", { type: "button" }, "all", make("span", {}, " steps…")),
    ...Object.keys(TABS).map((tab) => make("button", { type: "button", "data-tab": tab }, tab)));
  [...$("ideas").children].forEach((button, i) => button.addEventListener("click", () =>
    button.dataset.tab ? showTab(button.dataset.tab)
      : choose(i < PAGE.ideas.length ? { idea: i + 1 } : { idea: 0, pair: state.pair.length ? state.pair : PAGE.ideas[0].pair })));
  for (const [i, id] of ["set-a", "set-b"].entries()) {
    $(id).append(...Object.entries(PAGE.steps).map(([number, step]) => make("optgroup", { label: `${number} ${step.name}` },
      ...Object.keys(step.ideas).map((variant) => make("option", {}, `${number} ${variant}`)))));
    $(id).addEventListener("input", () => {
      const pair = [...state.pair];
      pair[i] = $(id).value;
      // Ranks are beside ranks, and no others.
      const ranks = pair.map((id) => stepOf(id).size === "ranks");
      if (ranks[0] !== ranks[1]) pair[1 - i] = ranks[i] ? "14 plain" : pair[i];
      choose({ pair });
    });
  }
  $("set-n").addEventListener("input", () => choose({ n: +$("set-n").value, pair: [...state.pair] }));
  $("set-m").addEventListener("input", () => choose({ m: +$("set-m").value, pair: [...state.pair] }));
  $("set-mask").addEventListener("input", () => choose({ mask: $("set-mask").value, pair: [...state.pair] }));
  $("set-block").addEventListener("input", () => choose({ block: +$("set-block").value }));
  $("set-causal").addEventListener("input", () => choose({ causal: $("set-causal").checked, pair: [...state.pair] }));
  $("open").addEventListener("click", () => choose({ more: !state.more }));
  [...$("which").children].forEach((button, i) => button.addEventListener("click", () => {
    chosen(i);
    redraw();
  }));
  readColours();
  const redraw = () => {
    readColours();
    shownKernel = null;
    if (state.tab) return showTab(state.tab, player.at);
    if (!sides[1].run) return;
    sides.forEach((side) => side.resize());
    show(player.at);
  };
  onTheme(redraw);
  window.addEventListener("resize", redraw);
  window.addEventListener("hashchange", fromAddress);
  window.flashSteps ??= {};
  return fromAddress();
}

begin().catch((error) => ($("about").textContent = error.message))
  .then(() => (document.documentElement.dataset.ready = performance.now().toFixed(0)));
