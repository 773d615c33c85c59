// What lies over what: texts of one drawing, and blocks of one parent; and what leaves the page to the right.
const bad = [];
const cuts = (a, b) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1.5
  && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 1.5;
const compare = (items, what) => items.forEach(([one, a], at) => items.slice(at + 1).forEach(([other, b]) => {
  if (cuts(a, b)) bad.push(`${what}: ${one.textContent.slice(0, 40)} | ${other.textContent.slice(0, 40)}`);
}));
const boxes = (list) => [...list].map((one) => [one, one.getBoundingClientRect()]).filter(([, box]) => box.width && box.height);
for (const svg of document.querySelectorAll("svg")) {
  const texts = boxes(svg.querySelectorAll("text"));
  compare(texts, "texts");
  const frame = svg.getBoundingClientRect();
  for (const [one, box] of texts) {
    if (box.left < frame.left - 2 || box.right > frame.right + 2 || box.top < frame.top - 2 || box.bottom > frame.bottom + 2) {
      bad.push(`cut off: ${one.textContent} ${box.left - frame.left} ${frame.right - box.right}`);
    }
  }
}
for (const parent of document.querySelectorAll("body, main, section, header, figure, .figures, .legend, .tools, nav ul, dl")) {
  compare(boxes(parent.children), `children of ${parent.tagName}`);
}
for (const row of document.querySelectorAll("table tr:first-child, tbody tr:nth-child(2)")) compare(boxes(row.cells), "cells");
for (const one of document.querySelectorAll("p, h1, h2, h3, li, dd, dt, figure, summary")) {
  const box = one.getBoundingClientRect();
  if (box.width && box.right > document.documentElement.clientWidth + 1 && !one.closest(".scroll, .drawing")) {
    bad.push(`leaves the page: ${one.textContent.slice(0, 60)}`);
  }
}
if (document.documentElement.scrollWidth > document.documentElement.clientWidth) bad.push("the page scrolls sideways");
return bad;
