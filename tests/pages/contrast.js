// Texts whose contrast with what is behind them is below 4.5 (WCAG 2.1, level AA).
const channel = (v) => { v /= 255; return v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4; };
const light = (text) => { const [r, g, b] = text.match(/[\d.]+/g).map(Number); return .2126 * channel(r) + .7152 * channel(g) + .0722 * channel(b); };
const ground = (one) => { for (; one; one = one.parentElement) { const c = getComputedStyle(one).backgroundColor; if (!/, 0\)$/.test(c) && c !== "transparent") return c; } return "rgb(255, 255, 255)"; };
const bad = [];
for (const one of document.querySelectorAll("p, h1, h2, h3, th, td:not(:has(.heat)), dt, dd, a, summary, svg text, caption span, .legend li")) {
  if (!one.getBoundingClientRect().width) continue;
  const ink = one.namespaceURI.endsWith("svg") ? getComputedStyle(one).fill : getComputedStyle(one).color;
  const [a, b] = [light(ink), light(ground(one))];
  const ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
  if (ratio < 4.5) bad.push(`${ratio.toFixed(2)} ${one.tagName} ${one.textContent.slice(0, 30)}`);
}
return bad;
