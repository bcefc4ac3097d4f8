// report.html: each figure as SVG and PNG, for slides.

const KEPT = ["fill", "fill-opacity", "stroke", "stroke-width", "stroke-dasharray", "opacity",
              "font-family", "font-size", "font-weight", "text-anchor", "visibility"];
const DROPPED = ["class", "tabindex", "aria-label", "role"];

const node = (name, attributes) => {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
};

// A copy whose looks do not need the page's style sheet.
function standalone(element) {
  const copy = element.cloneNode(true);
  const originals = [element, ...all("*", element)];
  [copy, ...all("*", copy)].forEach((part, i) => {
    const style = getComputedStyle(originals[i]);
    for (const key of KEPT) part.setAttribute(key, style.getPropertyValue(key));
    for (const key of DROPPED) part.removeAttribute(key);
  });
  return copy;
}

// The words of a text node, joined to the lines in which the page shows them.
function linesOf(text) {
  const lines = [];
  for (const word of text.data.matchAll(/\S+/g)) {
    const range = document.createRange();
    range.setStart(text, word.index);
    range.setEnd(text, word.index + word[0].length);
    const at = range.getBoundingClientRect();
    if (!at.width) continue;
    const last = lines.at(-1);
    if (last && Math.abs(last.bottom - at.bottom) < 3) last.words += ` ${word[0]}`;
    else lines.push({ words: word[0], x: at.x, bottom: at.bottom, height: at.height });
  }
  return lines;
}

// What is behind an element, as rectangles: one for each of its lines.
function backgroundsOf(element, box) {
  const [red, green, blue, opacity = 1] =
    getComputedStyle(element).backgroundColor.match(/[\d.]+/g).map(Number);
  if (!opacity || element.closest(".save, svg svg") || !element.checkVisibility()) return [];
  return [...element.getClientRects()].map((at) => node("rect", {
    x: at.x - box.x, y: at.y - box.y, width: at.width, height: at.height,
    fill: `rgb(${red}, ${green}, ${blue})`, "fill-opacity": opacity,
  }));
}

// A figure as one SVG: its plots and maps where they are, and its HTML's text as text.
function figureAsSvg(figure) {
  const box = figure.getBoundingClientRect(), room = 12;
  const width = box.width + 2 * room, height = box.height + 2 * room;
  const whole = node("svg", { width, height, viewBox: `${-room} ${-room} ${width} ${height}` });
  const background = getComputedStyle(document.body).backgroundColor;
  whole.append(node("rect", { x: -room, y: -room, width, height, fill: background }));
  for (const element of all("*", figure)) whole.append(...backgroundsOf(element, box));
  for (const svg of all("svg, canvas", figure)) {
    const at = svg.getBoundingClientRect();
    if (!at.width || !svg.checkVisibility()) continue;
    const where = { x: at.x - box.x, y: at.y - box.y, width: at.width, height: at.height };
    if (svg.tagName === "CANVAS") {
      whole.append(node("image", { ...where, href: svg.toDataURL() }));
      continue;
    }
    const copy = standalone(svg);
    for (const [key, value] of Object.entries(where)) copy.setAttribute(key, value);
    copy.setAttribute("overflow", "visible");
    whole.append(copy);
  }
  const texts = document.createTreeWalker(figure, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const parent = texts.currentNode.parentElement;
    if (parent.closest("svg, .save, summary") || !parent.checkVisibility()) continue;
    const style = getComputedStyle(parent);
    for (const line of linesOf(texts.currentNode)) {
      const size = parseFloat(style.fontSize);
      const made = node("text", {
        x: line.x - box.x, y: line.bottom - box.y - (line.height - size) / 2 - 0.22 * size,
        fill: style.color, "font-family": style.fontFamily, "font-size": size,
        "font-weight": style.fontWeight,
      });
      made.textContent = line.words;
      whole.append(made);
    }
  }
  return new XMLSerializer().serializeToString(whole);
}

function save(blob, name) {
  const link = make("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

// Twice the page's pixels, for slides.
async function figureAsPng(figure) {
  const image = new Image();
  image.src = URL.createObjectURL(new Blob([figureAsSvg(figure)], { type: "image/svg+xml" }));
  await image.decode();
  const canvas = make("canvas");
  canvas.width = 2 * image.width;
  canvas.height = 2 * image.height;
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  URL.revokeObjectURL(image.src);
  return new Promise((done) => canvas.toBlob(done, "image/png"));
}

for (const figure of all("figure")) {
  const buttons = make("div");
  buttons.className = "save";
  for (const [kind, made] of [
    ["SVG", async () => new Blob([figureAsSvg(figure)], { type: "image/svg+xml" })],
    ["PNG", () => figureAsPng(figure)],
  ]) {
    const one = make("button", kind);
    one.type = "button";
    one.setAttribute("aria-label", `Save this figure as ${kind}`);
    one.addEventListener("click", async () =>
      save(await made(), `${figure.dataset.name}.${kind.toLowerCase()}`));
    buttons.append(one);
  }
  figure.append(buttons);
}
