"use strict";
(() => {
  document.documentElement.classList.add("js");
  const table = document.getElementById("sites");
  if (!table) return;
  const bodies = Array.from(table.tBodies);
  const status = document.getElementById("filter-status");
  const input = document.getElementById("filter");
  const verdict = document.getElementById("verdict");
  const headers = Array.from(table.tHead.rows[0].cells);

  const keyOf = (body, column) => {
    const cell = body.rows[0].cells[column];
    const kind = headers[column].dataset.t;
    if (kind === "text") return cell.textContent.toLowerCase();
    // A share is shown rounded: the time that it is the share of sorts exactly.
    const exact = kind === "ratio" ? body.rows[0].cells[column - 1].dataset.v : cell.dataset.v;
    if (exact === undefined) return Number(cell.textContent.replace(/,/g, ""));
    return exact === "" ? null : Number(exact);
  };
  const sortBy = (column) => {
    const header = headers[column];
    const isText = header.dataset.t === "text";
    const was = header.getAttribute("aria-sort");
    // Numbers begin with the largest, names and ranks with the first.
    const first = isText || header.dataset.t === "rank" ? "ascending" : "descending";
    const other = first === "ascending" ? "descending" : "ascending";
    const order = was === first ? other : first;
    headers.forEach((h) => h.removeAttribute("aria-sort"));
    header.setAttribute("aria-sort", order);
    const sign = order === "ascending" ? 1 : -1;
    const rows = bodies.map((body, index) => ({ body, index, key: keyOf(body, column) }));
    rows.sort((a, b) => {
      // What is not known goes last in either order.
      if (a.key === null || b.key === null) return (a.key === null) - (b.key === null) || a.index - b.index;
      const by = isText ? a.key.localeCompare(b.key) : a.key - b.key;
      return sign * by || a.index - b.index;
    });
    table.append(...rows.map((row) => row.body));
  };
  headers.forEach((header, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...header.childNodes);
    button.addEventListener("click", () => sortBy(column));
    header.append(button);
  });

  const texts = new Map();
  const filter = () => {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const body of bodies) {
      if (!texts.has(body)) texts.set(body, body.textContent.toLowerCase());
      const text = texts.get(body);
      const wanted = !verdict.value || body.className === verdict.value;
      body.hidden = !wanted || !words.every((word) => text.includes(word));
      if (!body.hidden) shown += 1;
    }
    status.textContent = `${shown.toLocaleString("en")} of ${bodies.length.toLocaleString("en")} sites shown`;
  };
  let waiting = 0;
  input.addEventListener("input", () => {
    clearTimeout(waiting);
    waiting = setTimeout(filter, 80);
  });
  verdict.addEventListener("change", filter);
  input.addEventListener("keydown", (event) => {
    if (event.key === "Escape") {
      input.value = "";
      filter();
    }
  });

  // What many sites have (advice, a native stack) is in the page once; here it is shown in place.
  table.addEventListener("toggle", (event) => {
    const links = event.target.open ? event.target.querySelectorAll("a[data-copy]") : [];
    for (const link of links) {
      const original = document.getElementById(link.dataset.copy);
      if (!original) continue;
      const copy = original.cloneNode(true);
      copy.removeAttribute("id");
      link.replaceWith(copy);
    }
  }, true);
})();
