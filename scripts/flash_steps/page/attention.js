// report.html: the attention of one head over its text, of the data that report.py wrote.

async function attentionMap() {
  const { text, rows } = JSON.parse(document.getElementById("attention-data").textContent);
  const packed = Uint8Array.from(atob(rows), (letter) => letter.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  const weights = new Uint8Array(await new Response(stream).arrayBuffer()); // 255 P, row after row
  const row = (r) => weights.subarray((r * (r + 1)) / 2, ((r + 1) * (r + 2)) / 2);

  const place = document.getElementById("attention-text");
  const letters = [...text].map((letter) => make("span", letter === "\n" ? "↵\n" : letter));
  place.append(...letters);

  const canvas = document.getElementById("attention-map");
  const list = document.getElementById("attention-list");
  const said = document.getElementById("attention-said");
  const visible = (letter) => ({ "\n": "↵", " ": "␣" })[letter] ?? letter;
  const percent = (weight) => `${((100 * weight) / 255).toFixed(1)}%`;
  const ink = (weight) => (weight / 255) ** 0.45; // small weights stay visible
  let chosen = text.lastIndexOf("raise") + 3, picture = null;

  function choose(r) {
    chosen = r;
    const p = row(r);
    const [red, green, blue] = colour("--blue");
    letters.forEach((span, c) => {
      span.className = c === r ? "chosen" : c > r ? "later" : "";
      span.style.backgroundColor =
        c <= r && p[c] ? `rgb(${red} ${green} ${blue} / ${0.85 * ink(p[c])})` : "";
    });
    const best = [...p.keys()].sort((a, b) => p[b] - p[a]).slice(0, 5).filter((c) => p[c]);
    const first = best.slice(0, 2).map(
      (c) => `${percent(p[c])} on “${visible(text[c])}” at ${c}`);
    said.textContent = `Character ${r}, “${visible(text[r])}”: ${first.join(", ")}. ` +
      "Entries under 0.2% are not shown.";
    const around = (from, to) => [...text.slice(Math.max(0, from), to)].map(visible).join("");
    list.replaceChildren(...best.map((c) => {
      const letter = make("mark", visible(text[c]));
      const place = make("code", around(c - 12, c), letter, around(c + 1, c + 8));
      return make("li", `${percent(p[c])} at ${c}: `, place);
    }));
    draw();
  }

  function draw() {
    const context = canvas.getContext("2d");
    context.clearRect(0, 0, canvas.width, canvas.height);
    context.drawImage(picture, 0, 0, canvas.width, canvas.height);
    const [red, green, blue] = colour("--orange");
    const y = ((chosen + 0.5) * canvas.height) / text.length;
    context.fillStyle = `rgb(${red} ${green} ${blue})`;
    context.fillRect(0, y - 0.75, (y * canvas.width) / canvas.height, 1.5);
  }

  // The map in this theme's colours, a pixel for each entry of P.
  function paint() {
    picture = new OffscreenCanvas(text.length, text.length);
    const image = new ImageData(text.length, text.length);
    const rgb = colour("--blue");
    for (let r = 0; r < text.length; ++r) {
      row(r).forEach((weight, c) => {
        image.data.set([...rgb, 255 * ink(weight)], 4 * (r * text.length + c));
      });
    }
    picture.getContext("2d").putImageData(image, 0, 0);
    choose(chosen);
  }

  // The same column of the line above or below, or its end.
  const lines = text.split(/(?<=\n)/);
  const starts = lines.map((_, i) => lines.slice(0, i).join("").length);
  function nextLine(from, by) {
    const here = starts.findLastIndex((start) => start <= from), there = here + by;
    if (!(there in lines)) return from;
    return starts[there] + Math.min(from - starts[here], lines[there].length - 1);
  }

  // Not mouseover, which also comes when the text moves below a mouse that rests.
  place.addEventListener("mousemove", ({ target }) => {
    const r = letters.indexOf(target);
    if (r >= 0 && r !== chosen) choose(r);
  });
  canvas.addEventListener("mousemove", (event) => {
    const at = canvas.getBoundingClientRect();
    const r = Math.floor(((event.clientY - at.y) / at.height) * text.length);
    if (r >= 0 && r < text.length) choose(r);
  });
  place.addEventListener("keydown", (event) => {
    const to = {
      ArrowLeft: chosen - 1, ArrowRight: chosen + 1, ArrowUp: nextLine(chosen, -1),
      ArrowDown: nextLine(chosen, 1), Home: 0, End: text.length - 1,
    }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    choose(Math.max(0, Math.min(to, text.length - 1)));
  });
  document.addEventListener("theme", paint);
  paint();
}

// [red, green, blue] of a colour of the style sheet, in this theme.
function colour(name) {
  const probe = make("i");
  probe.style.color = `var(${name})`;
  document.body.append(probe);
  const found = getComputedStyle(probe).color.match(/[\d.]+/g).slice(0, 3).map(Number);
  probe.remove();
  return found;
}

attentionMap();
