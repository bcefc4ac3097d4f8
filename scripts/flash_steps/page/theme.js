"use strict";
// Of report.html and the explorer's pages: dark or light, as the system has it until the reader
// chooses. The colours are those of theme.css.

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
