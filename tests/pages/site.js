// What of a page of the documentation cannot be read, is out of order, or moves while it loads.
const bad = new Set();
const channel = (v) => { v /= 255; return v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4; };
const numbers = (text) => text.match(/[\d.]+/g).map(Number);
const light = ([r, g, b]) => .2126 * channel(r) + .7152 * channel(g) + .0722 * channel(b);
const over = (top, share, below) => below.map((v, at) => v * (1 - share) + top[at] * share);
const ground = (one) => {
  const layers = [];
  for (; one; one = one.parentElement) {
    const [r, g, b, share = 1] = numbers(getComputedStyle(one).backgroundColor);
    if (share) layers.push([[r, g, b], share]);
    if (share === 1) break;
  }
  return layers.reverse().reduce((below, [top, share]) => over(top, share, below), [255, 255, 255]);
};
const seen = new Set();
const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (texts.nextNode()) { // contrast of WCAG 2.1, level AA: 4.5, and 3 of large letters
  const one = texts.currentNode.parentElement;
  if (!texts.currentNode.data.trim() || seen.has(one) || one.closest("script, style, noscript, svg")) continue;
  seen.add(one);
  const style = getComputedStyle(one), box = one.getBoundingClientRect();
  let share = 1;
  for (let outer = one; outer; outer = outer.parentElement) share *= Number(getComputedStyle(outer).opacity);
  if (!box.width || !box.height || style.visibility === "hidden" || !share) continue;
  const below = ground(one), [r, g, b, own = 1] = numbers(style.color);
  const [x, y] = [light(over([r, g, b], own * share, below)), light(below)];
  const ratio = (Math.max(x, y) + .05) / (Math.min(x, y) + .05), size = parseFloat(style.fontSize);
  const large = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
  if (ratio < (large ? 3 : 4.5)) bad.add(`contrast ${ratio.toFixed(2)}: ${one.tagName} ${one.textContent.slice(0, 30)}`);
}
const all = (what) => [...document.querySelectorAll(what)];
const levels = all("h1, h2, h3, h4, h5, h6").map((one) => Number(one.tagName[1]));
if (levels[0] !== 1 || levels.filter((one) => one === 1).length !== 1) bad.add(`headings begin ${levels.slice(0, 6)}`);
levels.slice(1).forEach((level, at) => { if (level > levels[at] + 1) bad.add(`h${level} below h${levels[at]}`); });
const page = document.documentElement;
if (page.scrollWidth > page.clientWidth) bad.add("the page scrolls sideways");
for (const one of all("article img")) {
  if (!one.alt || /\.(png|svg)$/.test(one.alt)) bad.add(`an image without words: ${one.src}`);
  if (!one.hasAttribute("width") || !one.hasAttribute("height")) bad.add(`an image without a size: ${one.src}`);
  if (Math.abs(one.width / one.height - one.naturalWidth / one.naturalHeight) > .02) bad.add(`a stretched image: ${one.src}`);
}
for (const one of all("input:not([type=hidden]), select")) if (!one.labels.length && !one.ariaLabel) bad.add("a field without a label");
for (const one of all("a, button")) {
  const named = one.textContent.trim() || one.ariaLabel || one.title || one.querySelector("img[alt]");
  if (one.getBoundingClientRect().width && !named) bad.add(`without a name: ${one.outerHTML.slice(0, 60)}`);
}
if (!page.lang) bad.add("a page without a language");
return [...bad];
