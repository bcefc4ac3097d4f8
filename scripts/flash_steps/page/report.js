// report.html: what its figures do. Without it the page shows everything but the attention map.

const all = (selector, root = document) => [...root.querySelectorAll(selector)];
const make = (name, ...inside) => {
  const made = document.createElement(name);
  made.append(...inside);
  return made;
};
const SVG = document.querySelector("svg").namespaceURI;

// --- light and dark ------------------------------------------------------------------------------

const button = document.getElementById("theme");

function nameTheme() {
  button.textContent = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  button.setAttribute("aria-label", `Change to ${button.textContent}`);
  document.dispatchEvent(new Event("theme"));
}
onTheme(nameTheme);  // theme.js
nameTheme();

// --- the numbers of a mark: on hover, and by the keyboard ----------------------------------------

const MARK = "svg [aria-label]";
const tip = document.getElementById("tip");

function showTip(mark) {
  tip.textContent = mark.getAttribute("aria-label");
  tip.hidden = false;
  const at = mark.getBoundingClientRect(), own = tip.getBoundingClientRect();
  const left = Math.min(at.x + at.width / 2, innerWidth) - own.width / 2;
  const above = at.y - own.height - 8;
  tip.style.left = `${Math.max(8, Math.min(left, innerWidth - own.width - 8))}px`;
  tip.style.top = `${above > 8 ? above : at.bottom + 8}px`;
}
const hideTip = () => { tip.hidden = true; };
for (const [event, show] of [["mouseover", true], ["focusin", true], ["mouseout", false],
                             ["focusout", false]]) {
  document.addEventListener(event, ({ target }) => {
    if (target.matches?.(MARK)) show ? showTip(target) : hideTip();
  });
}
addEventListener("scroll", hideTip, { passive: true });

// Tab reaches a figure's first mark, the arrow keys the others; Escape hides what a mark says.
for (const figure of all("figure")) {
  const marks = () => all(MARK, figure).filter((mark) => mark.checkVisibility());
  all(MARK, figure).forEach((mark, i) => mark.setAttribute("tabindex", i ? -1 : 0));
  figure.addEventListener("keydown", (event) => {
    if (!event.target.matches(MARK)) return;
    if (event.key === "Escape") return hideTip();
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    const among = marks();
    const next = among[among.indexOf(event.target) + step];
    if (!next) return;
    event.preventDefault();
    event.target.setAttribute("tabindex", -1);
    next.setAttribute("tabindex", 0);
    next.focus();
  });
}

// --- labels that do not overlap, at any width ----------------------------------------------------

const overlap = (a, b) =>
  a.x < b.right + 2 && b.x < a.right + 2 && a.y < b.bottom + 1 && b.y < a.bottom + 1;

// At the right end of each line: from top to bottom, each below the one before.
function spreadEnds(plot) {
  let last = -Infinity;
  const ends = all(".end", plot).map((label) => {
    label.setAttribute("dy", 4);
    return [label.getBBox().y, label];
  });
  for (const [y, label] of ends.sort((a, b) => a[0] - b[0])) {
    last = Math.max(y, last + 13);
    label.setAttribute("dy", 4 + last - y);
  }
}

// Beside a point: the nearest free place, with a line to the point where it is not next to it.
function spreadPoints(plot) {
  const points = all(".point", plot).map((point) => point.getBoundingClientRect());
  const level = (line) => line.getBoundingClientRect().height < 2;
  const others = [...all(".roofname, .tick, .name", plot), ...all(".roof", plot).filter(level)];
  const taken = [...points, ...others.map((other) => other.getBoundingClientRect())];
  const box = plot.closest("figure").getBoundingClientRect();
  all(".point", plot).forEach((point, i) => {
    const leader = point.nextElementSibling, label = leader?.nextElementSibling;
    if (!leader?.matches(".leader")) return;
    const cx = points[i].x + points[i].width / 2, cy = points[i].y + points[i].height / 2;
    const size = label.getBBox();
    let best = null;
    search: for (let far = 10; far < 150; far += 8) {
      for (let turn = 0; turn < 16; ++turn) {
        const angle = (turn * Math.PI) / 8;
        const side = Math.abs(Math.cos(angle)) < 0.3 ? 0.5 : Math.cos(angle) < 0 ? 1 : 0;
        const dx = far * Math.cos(angle) - side * size.width;
        const dy = far * Math.sin(angle);
        const x = cx + dx, y = cy + dy;
        const place = { x, right: x + size.width, y: y - 7, bottom: y + 7 };
        if (place.x < box.x || place.right > box.right) continue;
        if (taken.some((other) => overlap(place, other))) continue;
        best = { dx, dy, far, place };
        break search;
      }
    }
    if (!best) return;
    taken.push(best.place);
    label.setAttribute("dx", best.dx);
    label.setAttribute("dy", best.dy + 4);
    const inside = plot.getBoundingClientRect();
    const x = Math.max(best.place.x, Math.min(cx, best.place.right));
    const y = Math.max(best.place.y, Math.min(cy, best.place.bottom));
    const near = best.far < 18;
    for (const [name, value] of [["x1", cx - inside.x], ["y1", cy - inside.y],
                                 ["x2", near ? cx - inside.x : x - inside.x],
                                 ["y2", near ? cy - inside.y : y - inside.y]]) {
      leader.setAttribute(name, value);
    }
  });
}

// Of ticks that would touch each other only some stay.
function thinTicks(plot) {
  let right = -Infinity;
  for (const tick of all(".tick.x", plot)) {
    tick.removeAttribute("visibility");
    const at = tick.getBoundingClientRect();
    if (at.x < right + 4) tick.setAttribute("visibility", "hidden");
    else right = at.right;
  }
}

// In a narrow plot labels that have a short text show it.
function shorten(plot) {
  const narrow = plot.closest("figure").clientWidth <= 420;
  for (const label of all("[data-short]", plot)) {
    label.dataset.long ??= label.textContent;
    label.textContent = narrow ? label.dataset.short : label.dataset.long;
  }
}

function layOut() {
  for (const plot of all(".plot, .scale")) {
    thinTicks(plot);
    shorten(plot);
    spreadEnds(plot);
    spreadPoints(plot);
  }
}
new ResizeObserver(layOut).observe(document.body);
