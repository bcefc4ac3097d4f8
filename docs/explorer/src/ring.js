// The page of step 14: ranks as lanes, hops from left to right.

const page = JSON.parse(document.getElementById("page").textContent);
const $ = (id) => document.getElementById(id);
const state = { variant: "zigzag", ranks: 4, causal: true, pass: "forward", hop: 0, timer: 0 };
const number = (x) => Math.round(x).toLocaleString("en-US");
const percent = (x) => `${Math.round(100 * x)}%`;
const count = (rows) => rows.reduce((n, [begin, end]) => n + end - begin, 0);
const words = (rows) => rows.map(([begin, end]) => `${begin}-${end - 1}`).join(", ");
const colour = (rank, run) => `hsl(${Math.round(rank * 360 / run.ranks + 210) % 360} 60% 50%)`;

function currentRun() {
  return page.runs.find((run) => run.variant === state.variant && run.ranks === state.ranks &&
    run.causal === state.causal);
}

// --- what a hop is: as in 2_hops.cuh and 4_backward.cuh --------------------------------------------

function sourceOf(rank, hop, R) {
  return state.pass === "forward" ? (rank - hop + R) % R : (rank + 1 + hop) % R;
}
function scoresOf(run, rank, hop) {
  const from = sourceOf(rank, hop, run.ranks);
  return run.scores[rank][(rank - from + run.ranks) % run.ranks];
}
function sentIn(run, rank, hop) {
  const R = run.ranks;
  const numbers = (h) => count(run.rows[sourceOf(rank, h, R)]) * run.b * run.hkv * run.d;
  if (state.pass === "forward") return hop + 1 < R ? 2 * 2 * numbers(hop) : 0;
  return (hop + 2 < R ? 2 * 2 * numbers(hop) : 0) + (hop > 0 ? 2 * 4 * numbers(hop - 1) : 0);
}
function sum(n, f) {
  let all = 0;
  for (let i = 0; i < n; ++i) all += f(i);
  return all;
}
function mostOf(run, hop) {
  return Math.max(...run.rows.map((_, rank) => scoresOf(run, rank, hop)));
}

// --- the pictures ---------------------------------------------------------------------------------

// Blocks of the square of scores: rows of a rank with keys of another one.
function shapes(run, rank, from) {
  const found = [];
  for (const [top, bottom] of run.rows[rank]) {
    for (const [left, right] of run.rows[from]) {
      if (!run.causal || right <= top) {
        found.push(`M${left} ${top}H${right}V${bottom}H${left}Z`);
      } else if (left === top) {
        found.push(`M${left} ${top}L${right} ${bottom}H${left}Z`);
      }
    }
  }
  return found.join("");
}
function square(run) {
  const parts = [];
  for (let rank = 0; rank < run.ranks; ++rank) {
    for (let hop = 0; hop < run.ranks; ++hop) {
      const from = sourceOf(rank, hop, run.ranks);
      const shade = hop < state.hop ? .35 : hop === state.hop ? 1 : .08;
      parts.push(`<path d="${shapes(run, rank, from)}" fill="${colour(rank, run)}"` +
        ` fill-opacity="${shade}"><title>rank ${rank} with the keys of rank ${from}: hop ${hop}` +
        "</title></path>");
    }
  }
  const edge = run.n / 200;
  return `<svg viewBox="${-edge} ${-edge} ${run.n + 2 * edge} ${run.n + 2 * edge}" role="img"` +
    ` aria-label="The scores that each rank computes">${parts.join("")}` +
    `<rect width="${run.n}" height="${run.n}" class="frame"/></svg>`;
}
function lanes(run) {
  const most = run.rows.map((_, hop) => mostOf(run, hop));
  const columns = most.map((x) => `minmax(0, ${x}fr)`).join(" ");
  const rows = run.rows.map((_, rank) => {
    const cells = most.map((all, hop) => {
      const scores = scoresOf(run, rank, hop);
      const when = hop < state.hop ? "past" : hop === state.hop ? "now" : "next";
      return `<span class="hop ${when}"><i style="width:${100 * scores / all}%;` +
        `background:${colour(rank, run)}"></i><b>${sourceOf(rank, hop, run.ranks)}</b></span>`;
    });
    return `<b class="who">${rank}</b><div class="hops" style="grid-template-columns:${columns}">` +
      `${cells.join("")}</div>`;
  });
  return `<div class="ring">${rows.join("")}</div>`;
}
function table(run) {
  const rows = run.rows.map((mine, rank) => {
    const done = sum(state.hop + 1, (hop) => scoresOf(run, rank, hop));
    const waited = sum(state.hop + 1, (hop) => mostOf(run, hop)) - done;
    const sent = sum(state.hop + 1, (hop) => sentIn(run, rank, hop));
    return `<tr><td>${rank}</td><td>${words(mine)}</td><td>${number(done)}</td>` +
      `<td>${number(waited)}</td><td>${number(sent)}</td></tr>`;
  });
  return "<table><thead><tr><th>rank</th><th>rows</th><th>scores</th><th>waited</th>" +
    `<th>bytes sent</th></tr></thead><tbody>${rows.join("")}</tbody></table>`;
}

function draw() {
  const run = currentRun(), R = run.ranks;
  $("views").innerHTML = '<div class="view"><section class="card"><h2>Scores ' +
    `<small>rows of Q down, keys across</small></h2>${square(run)}<p class="legend">A colour is a ` +
    "rank. Strong: this hop; pale: before; faint: to come.</p></section>" +
    '<section class="card"><h2>Ranks <small>hops from left to right; the number is the rank ' +
    `whose keys are here</small></h2>${lanes(run)}<p class="legend">The empty part of a hop: the ` +
    `rank waits for the slowest.</p>${table(run)}<p class="checked" id="sum"></p></section></div>`;
  const sent = run.sent.map((both) => both[state.pass === "forward" ? 0 : 1]);
  const equal = sent.every((x, rank) => x === sum(R, (hop) => sentIn(run, rank, hop)));
  const all = $("sum");
  all.textContent = `After the last hop: ${equal ? "=" : "NOT"} the program's prediction, ` +
    `${number(sent[0])} bytes by rank 0.`;
  all.classList.add(equal ? "equal" : "differs");
  const useful = sum(R, (rank) => sum(state.hop + 1, (hop) => scoresOf(run, rank, hop)));
  const slowest = R * sum(state.hop + 1, (hop) => mostOf(run, hop));
  const idle = run.rows.map((_, rank) => rank)
    .filter((rank) => scoresOf(run, rank, state.hop) < mostOf(run, state.hop));
  $("status").textContent = `Hop ${state.hop} (of 0 to ${R - 1}): ` +
    (idle.length ? `rank${idle.length > 1 ? "s" : ""} ${idle.join(", ")} wait` +
      `${idle.length > 1 ? "" : "s"}. ` : "nobody waits. ") +
    `So far ${percent(useful / slowest)} of the ideal.`;
  $("scrub").max = R - 1;
  $("scrub").value = state.hop;
  document.body.ariaBusy = "false";
  document.documentElement.dataset.ready ||= performance.now().toFixed(0);
}

// --- controls -------------------------------------------------------------------------------------

function go(hop) {
  state.hop = Math.max(0, Math.min(state.ranks - 1, hop));
  draw();
}
function playing(on) {
  clearInterval(state.timer);
  state.timer = 0;
  $("play").ariaLabel = on ? "Pause" : "Play";
  if (!on) return;
  if (state.hop === state.ranks - 1) go(0);
  state.timer = setInterval(() => {
    go(state.hop + 1);
    if (state.hop === state.ranks - 1) playing(false);
  }, 1500 / $("speed").value);
}
function select(name, label, values) {
  const options = values.map((x) =>
    `<option${String(state[name]) === String(x) ? " selected" : ""}>${x}</option>`);
  return `<label>${label} <select id="set-${name}">${options.join("")}</select></label>`;
}

$("controls").innerHTML = select("variant", "variant", ["plain", "zigzag"]) +
  select("ranks", "ranks", [2, 4, 8]) + select("pass", "pass", ["forward", "backward"]) +
  '<label><input type="checkbox" id="set-causal" checked> causal</label>';
$("controls").addEventListener("change", () => {
  state.variant = $("set-variant").value;
  state.ranks = Number($("set-ranks").value);
  state.pass = $("set-pass").value;
  state.causal = $("set-causal").checked;
  playing(false);
  go(state.hop);
});
const actions = {
  home: () => go(0),
  back: () => go(state.hop - 1),
  step: () => go(state.hop + 1),
  end: () => go(state.ranks - 1),
};
for (const [id, act] of Object.entries(actions)) {
  $(id).addEventListener("click", () => { playing(false); act(); });
}
$("play").addEventListener("click", () => playing(!state.timer));
$("scrub").addEventListener("input", () => { playing(false); go(Number($("scrub").value)); });
document.addEventListener("keydown", (e) => {
  if (e.target.closest("select, input, summary, button, a")) return;
  if (e.ctrlKey || e.metaKey || e.altKey) return;
  const act = { Home: "home", End: "end", ArrowLeft: "back", ArrowRight: "step", " ": "play" }[e.key];
  if (!act) return;
  e.preventDefault();
  $(act).click();
});
onTheme(draw);
draw();
