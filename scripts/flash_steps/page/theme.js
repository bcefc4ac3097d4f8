"use strict";
// Of report.html and the explorer's pages: what they name instead of a link to Markdown; dark or light,
// as the system has it until the reader chooses. The colours are those of theme.css.

// Of Markdown a browser shows the raw text, or downloads it. A page in the book (./scripts/maintain docs)
// has no such links: there they lead to other pages of the book.
for (const a of document.querySelectorAll('a[href$=".md"]')) {
  const file = decodeURI(/.*\/((?:docs|steps)\/.*)/.exec(a.href)[1]);
  a.replaceWith(`${a.textContent}: ${file}`);
}

function setTheme(theme) { document.documentElement.dataset.theme = theme; }
function firstTheme() {
  try {
    const kept = localStorage.getItem("theme");
    if (kept) return kept;
  } catch { /* a page from a file may keep nothing */ }
  return matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
}
function onTheme(redraw) {
  const set = (theme) => {
    setTheme(theme);
    redraw();
  };
  let chosen = false;  // also where nothing can be kept
  document.getElementById("theme").addEventListener("click", () => {
    const theme = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    chosen = true;
    try { localStorage.setItem("theme", theme); } catch { /* as above */ }
    set(theme);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    if (!chosen) set(firstTheme());
  });
}

setTheme(firstTheme());
