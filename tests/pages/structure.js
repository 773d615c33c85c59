// What screen readers need, and what a page must not hold.
const all = (what) => [...document.querySelectorAll(what)];
const bad = [];
const levels = all("h1, h2, h3, h4").map((one) => Number(one.tagName[1]));
if (levels[0] !== 1 || levels.filter((one) => one === 1).length !== 1) bad.push(`headings begin ${levels}`);
levels.slice(1).forEach((level, at) => { if (level > levels[at] + 1) bad.push(`h${level} below h${levels[at]}`); });
for (const one of all("svg")) if (!one.getAttribute("aria-label") || one.getAttribute("role") !== "img") bad.push("a figure without words");
for (const one of all("th")) if (!one.scope) bad.push(`no scope: ${one.textContent}`);
for (const one of all("table")) if (!one.caption) bad.push("a table without a caption");
for (const one of all("figure")) if (!document.getElementById(one.getAttribute("aria-labelledby"))?.textContent) bad.push("a figure without a name");
for (const one of all("table")) if (one.closest("[role]")?.getAttribute("aria-label") === one.caption?.textContent) bad.push("a table's name twice");
for (const one of all("th button")) if (!one.querySelector(".arrow[aria-hidden=true]")) bad.push("an arrow that is read");
for (const one of all("input, select")) if (!one.labels.length) bad.push("a field without a label");
const ids = all("[id]").map((one) => one.id);
if (new Set(ids).size !== ids.length) bad.push("an id twice");
for (const one of all("a[href^='#']")) if (!document.getElementById(one.hash.slice(1))) bad.push(`leads nowhere: ${one.hash}`);
for (const one of all("iframe, img, link, object, embed")) bad.push(`fetches: ${one.outerHTML}`);
if (document.scripts.length !== 1) bad.push(`${document.scripts.length} scripts`);
return bad;
