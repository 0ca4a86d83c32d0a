"use strict";
// Sorting of tables, the theme, the current entry of the contents, and sections that are open in print.

const theme = document.querySelector(".theme");
const root = document.documentElement;

function showTheme(name) {
  root.dataset.theme = name;
  theme.textContent = name === "dark" ? "Light page" : "Dark page";
}

function remembered() {
  try { return localStorage.getItem("segcal-theme"); } catch { return null; } // some browsers forbid it for files
}

const dark = matchMedia("(prefers-color-scheme: dark)");
showTheme(remembered() || (dark.matches ? "dark" : "light"));
dark.addEventListener("change", () => { if (!remembered()) showTheme(dark.matches ? "dark" : "light"); });
theme.hidden = false;
theme.addEventListener("click", () => {
  showTheme(root.dataset.theme === "dark" ? "light" : "dark");
  try { localStorage.setItem("segcal-theme", root.dataset.theme); } catch { /* the choice is lost with the page */ }
});

// A cell's value: its data-value where it has one, a number where it is one. Missing ones come last in both directions.
function valueOf(row, column) {
  const cell = row.cells[column];
  const text = (cell.dataset.value ?? cell.textContent).trim();
  if (text === "" || text === "nan" || text === "–") return null;
  const number = Number(text);
  return Number.isNaN(number) ? text : number;
}

function compare(a, b) {
  if (typeof a === "number" && typeof b === "number") return a - b;
  return String(a).localeCompare(String(b), undefined, { numeric: true });
}

function sortBy(header) {
  const table = header.closest("table");
  const body = table.tBodies[0];
  const before = header.getAttribute("aria-sort");
  const first = header.dataset.first || "ascending";
  const other = { ascending: "descending", descending: "ascending" };
  const way = other[before] || first;
  for (const each of table.tHead.querySelectorAll("[aria-sort]")) each.setAttribute("aria-sort", "none");
  header.setAttribute("aria-sort", way);
  const column = header.cellIndex;
  const sign = way === "ascending" ? 1 : -1;
  const rows = [...body.rows].map((row) => [valueOf(row, column), row]);
  rows.sort(([a], [b]) => (a === null) - (b === null) || (a === null ? 0 : sign * compare(a, b)));
  body.append(...rows.map(([, row]) => row));
}

for (const button of document.querySelectorAll("th .sort")) {
  button.addEventListener("click", () => sortBy(button.closest("th")));
}

// A table as CSV: the numbers that are shown sort, so they are exported; an interval is two more columns.
function csvOf(table) {
  const quoted = (text) => (/[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
  const heads = [...table.tHead.rows[0].cells].map((cell) => cell.dataset.label);
  const rows = [...table.tBodies[0].rows].map((row) => [...row.cells]);
  const ends = heads.map((_, i) => rows.some((row) => row[i].title));
  const lines = [heads.flatMap((head, i) => (ends[i] ? [head, `${head} low`, `${head} high`] : [head]))];
  for (const row of rows) {
    lines.push(row.flatMap((cell, i) => {
      const value = cell.dataset.value ?? cell.textContent.trim();
      if (!ends[i]) return [value];
      const [low = "", high = ""] = cell.title ? cell.title.replaceAll("−", "-").split(" to ") : [];
      return [value, low, high];
    }));
  }
  return lines.map((line) => line.map(quoted).join(",") + "\r\n").join("");
}

for (const button of document.querySelectorAll(".csv")) {
  button.hidden = false;
  button.addEventListener("click", () => {
    const text = csvOf(button.closest(".table").querySelector("table"));
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob(["\ufeff", text], { type: "text/csv" }));
    link.download = `${button.dataset.name}.csv`;
    link.click();
    URL.revokeObjectURL(link.href);
  });
}

for (const select of document.querySelectorAll("select[data-shows]")) {
  const show = () => {
    for (const part of document.querySelectorAll(`[data-of="${select.dataset.shows}"]`)) {
      part.hidden = part.id !== select.value;
    }
  };
  select.addEventListener("change", show);
  show();
}

const links = new Map([...document.querySelectorAll(".contents a")].map((a) => [a.hash.slice(1), a]));
const seen = new Set();
const watcher = new IntersectionObserver((entries) => {
  for (const entry of entries) seen[entry.isIntersecting ? "add" : "delete"](entry.target.id);
  const current = [...links.keys()].find((id) => seen.has(id) && !links.get(id).parentElement.matches(".group"));
  for (const [id, link] of links) {
    if (id === current) link.setAttribute("aria-current", "true");
    else link.removeAttribute("aria-current");
  }
}, { rootMargin: "-10% 0px -60% 0px" });
for (const id of links.keys()) {
  const target = document.getElementById(id);
  if (target) watcher.observe(target);
}

let closed = [];
addEventListener("beforeprint", () => {
  closed = [...document.querySelectorAll("details:not([open])")];
  for (const each of closed) each.open = true;
});
addEventListener("afterprint", () => { for (const each of closed) each.open = false; });
