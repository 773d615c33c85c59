"use strict";
(() => {
  const number = (cell) => { const value = parseFloat(cell.textContent); return Number.isNaN(value) ? null : value; };
  const numeric = (a, b) => (a === null ? (b === null ? 0 : 1) : b === null ? -1 : a - b); // what is not known is last

  for (const table of document.querySelectorAll("table[data-sortable]")) {
    const body = table.tBodies[0];
    [...table.tHead.rows[0].cells].forEach((head, at) => {
      const button = document.createElement("button");
      button.type = "button";
      const arrow = document.createElement("span"); // aria-sort says the same to readers
      arrow.className = "arrow";
      arrow.setAttribute("aria-hidden", "true");
      button.append(...head.childNodes);
      button.insertBefore(arrow, button.querySelector(".way"));
      head.append(button);
      button.addEventListener("click", () => {
        const up = head.getAttribute("aria-sort") !== "ascending";
        for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
        head.setAttribute("aria-sort", up ? "ascending" : "descending");
        const numbers = head.classList.contains("n");
        const rows = [...body.rows].map((row) => [row, numbers ? number(row.cells[at]) : row.cells[at].textContent]);
        rows.sort(([, a], [, b]) => {
          if (numbers && (a === null || b === null)) return numeric(a, b);
          const way = numbers ? a - b : a.localeCompare(b, undefined, { numeric: true });
          return up ? way : -way;
        });
        body.append(...rows.map(([row]) => row));
      });
    });
  }

  const panelOf = (hash) => {
    const inner = hash.length > 1 ? document.getElementById(decodeURIComponent(hash.slice(1))) : null;
    return inner && inner.closest("details.client") ? inner : null;
  };
  const show = (inner) => {
    for (const other of document.querySelectorAll("details.client[open]")) {
      if (other !== inner.parentElement) other.open = false;
    }
    inner.parentElement.open = true;
    inner.parentElement.scrollIntoView({ block: "start" });
    inner.focus({ preventScroll: true });
  };
  const table = document.getElementById("client-table");
  if (table) {
    table.addEventListener("click", (event) => {
      const link = event.target.closest("a[href^='#']");
      const inner = link ? panelOf(link.getAttribute("href")) : null;
      if (inner) {
        event.preventDefault();
        show(inner);
        history.replaceState(null, "", link.getAttribute("href"));
      }
    });
    const search = document.getElementById("client-search");
    const group = document.getElementById("client-group");
    const count = document.getElementById("client-count");
    const filter = () => {
      const text = search.value.trim().toLowerCase();
      let shown = 0;
      for (const row of table.tBodies[0].rows) {
        const name = row.cells[0].textContent.toLowerCase();
        const hide = (text && !name.includes(text)) || (group.value && row.dataset.group !== group.value);
        row.hidden = Boolean(hide);
        shown += hide ? 0 : 1;
        const link = row.querySelector("a[href^='#']");
        const inner = link ? panelOf(link.getAttribute("href")) : null;
        if (inner) inner.parentElement.hidden = Boolean(hide);
      }
      count.textContent = `${shown} of ${table.tBodies[0].rows.length} clients`;
    };
    search.addEventListener("input", filter);
    group.addEventListener("change", filter);
    document.getElementById("client-tools").hidden = false;
    filter();
    const first = panelOf(location.hash);
    if (first) show(first);
  }

  const folded = () => [...document.querySelectorAll("details:not([open])")];
  let opened = [];
  window.addEventListener("beforeprint", () => { opened = folded().filter((one) => !one.classList.contains("client")); opened.forEach((one) => { one.open = true; }); });
  window.addEventListener("afterprint", () => opened.forEach((one) => { one.open = false; }));
})();
