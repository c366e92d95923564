// Figures as SVG, in the colours of the page; whatever a colour says, a dash pattern, a stripe or a word says as well.

const NS = "http://www.w3.org/2000/svg";

export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) if (value !== null) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function svg(name, attributes = {}, ...children) {
  const made = document.createElementNS(NS, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

export function number(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size >= 1000) return Math.round(value).toLocaleString("en-US");
  if (size >= 100) return value.toFixed(Number.isInteger(value) ? 0 : 1);
  if (size >= 1) return Number.isInteger(value) ? String(value) : value.toFixed(size >= 10 ? 1 : 2);
  return value === 0 ? "0" : value.toPrecision(2);
}

// A return: always with one decimal, so that those of a column can be compared at a glance.
export function decimal(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size >= 10_000) return Math.round(value).toLocaleString("en-US");
  return size && size < 0.95 ? value.toPrecision(2) : value.toLocaleString("en-US", { minimumFractionDigits: 1, maximumFractionDigits: 1 });
}

export function short(value) {
  for (const [size, letter] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (Math.abs(value) >= size * 0.9995) return `${Number((value / size).toPrecision(3))}${letter}`;
  }
  return `${Number(value.toPrecision(3))}`;
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return "–";
  const whole = Math.max(0, Math.round(seconds)), minutes = Math.floor(whole / 60), rest = String(whole % 60).padStart(2, "0");
  return minutes >= 60 ? `${Math.floor(minutes / 60)}:${String(minutes % 60).padStart(2, "0")}:${rest}` : `${minutes}:${rest}`;
}

export function percent(share) {
  return share === null || share === undefined ? "–" : `${Math.round(100 * share)} %`;
}

function ticks(low, high, most, least = 0) {
  const span = high - low;
  if (!(span > 0)) return [low];
  const raw = span / most, power = 10 ** Math.floor(Math.log10(raw));
  const step = Math.max(least, [1, 2, 5, 10].map((one) => one * power).find((one) => one >= raw));
  const found = [];
  for (let at = Math.ceil(low / step - 1e-9) * step; at <= high + step * 1e-6; at += step) found.push(Math.abs(at) < step * 1e-6 ? 0 : at);
  return found;
}

const drawnPoints = (one) => one.points.filter(([, y]) => y !== null);

// A line of a single point is a dot, too.
const isDotted = (one) => one.dots || drawnPoints(one).length === 1;

// The names of `series`, each beside a sample of its line or its dots; nothing for a single one.
export function legend(series) {
  const samples = series.map((one) => svg("svg", { class: "sample", viewBox: "0 0 22 8", "aria-hidden": "true" },
    isDotted(one) ? svg("circle", { class: `dot ${one.style}`, cx: 11, cy: 4, r: 3 }) : svg("path", { class: `line ${one.style}`, d: "M0 4H22" })));
  return series.length > 1 ? [element("p", { class: "legend" }, ...series.map((one, place) => element("span", { class: "series" }, samples[place], one.name)))] : [];
}

// A path through the points; with `steps` it goes sideways first, then up or down.
function pathOf(points, steps) {
  const [[firstX, firstY], ...others] = points;
  const parts = others.map(([x, y]) => (steps ? `H${x}V${y}` : `L${x} ${y}`));
  return `M${firstX} ${firstY}${parts.join("")}`;
}

// Lines, or with `dots` points, of `series`: [{ name, points: [[x, y], …], style }].
export function lineChart({ label, series, width, height = 130, xLabel = "", yLabel = "", xEnd = 0, dots = false, zero = false, top = null }) {
  const all = series.flatMap((one) => one.points).filter(([, y]) => y !== null);
  const left = 44, right = 8, above = yLabel ? 24 : 10, below = xLabel ? 32 : 20;
  const figure = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
  let low = Math.min(...all.map((one) => one[1])), high = Math.max(...all.map((one) => one[1]));
  if (!all.length) [low, high] = [0, 1];
  if (zero) low = Math.min(0, low);
  if (top !== null) high = Math.max(top, high);
  if (low === high) [low, high] = [low - (Math.abs(low) || 1) * 0.1, high + (Math.abs(high) || 1) * 0.1];
  const end = Math.max(xEnd, ...all.map((one) => one[0])) || 1;
  const x = (value) => left + (value / end) * (width - left - right);
  const y = (value) => above + (1 - (value - low) / (high - low)) * (height - above - below);
  for (const at of ticks(low, high, Math.max(2, Math.floor(height / 40)))) {
    figure.append(svg("path", { class: "axis", d: `M${left} ${y(at).toFixed(1)}H${width - right}` }));
    figure.append(svg("text", { x: left - 5, y: (y(at) + 4).toFixed(1), "text-anchor": "end" }, short(at)));
  }
  for (const at of ticks(0, end, Math.max(2, Math.floor(width / 90)), dots ? 0 : 1)) { // a line is over env_steps or trials: whole numbers
    const anchor = x(at) > width - right - 12 ? "end" : "middle";
    figure.append(svg("text", { x: x(at).toFixed(1), y: height - below + 14, "text-anchor": anchor }, short(at)));
  }
  if (yLabel) figure.append(svg("text", { x: 2, y: 9 }, yLabel));
  if (xLabel) figure.append(svg("text", { x: width - right, y: height - 3, "text-anchor": "end" }, xLabel));
  for (const one of series) {
    const points = drawnPoints(one);
    if (!points.length) continue;
    if (dots || isDotted(one)) {
      for (const [a, b] of points) {
        figure.append(svg("circle", { class: `dot ${one.style}`, cx: x(a).toFixed(1), cy: y(b).toFixed(1), r: 3 }, svg("title", {}, one.title?.(a, b) ?? `${one.name}: ${number(b)}`)));
      }
      continue;
    }
    const path = pathOf(points.map(([a, b]) => [x(a).toFixed(1), y(b).toFixed(1)]), one.steps);
    figure.append(svg("path", { class: `line ${one.style}`, d: path, fill: "none" }, svg("title", {}, one.name)));
  }
  return figure;
}

// Colours of lines in page.css: s0, s1, …
export const STYLES = 8;

// Colour and dashes of the curve with that number.
export const lineStyle = (place) => `s${place % STYLES} d${place % 4}`;

const PATTERNS = { FAILED: "failed", PAUSED: "stopped", CANCELLED: "stopped" };

// Attempts on their CPUs over time. `bars`: [{ name, lanes, begin, end, state, delay, title, href }], seconds.
export function gantt({ label, bars, width, now }) {
  const begin = Math.min(...bars.map((bar) => bar.begin)), end = Math.max(begin + 1, ...bars.map((bar) => bar.end ?? now));
  const names = [...new Set(bars.flatMap((bar) => bar.lanes))].sort((a, b) => a.localeCompare(b, "en", { numeric: true }));
  const lane = Math.min(22, Math.max(5, 620 / names.length)), left = Math.min(130, 14 + 6.4 * Math.max(...names.map((name) => name.length)));
  const below = 34, height = names.length * lane + below, right = 8;
  const figure = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": label });
  figure.append(svg("defs", {},
    svg("pattern", { id: "failed", width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" }, svg("path", { class: "stripe", d: "M0 0V6" })),
    svg("pattern", { id: "stopped", width: 5, height: 5, patternUnits: "userSpaceOnUse" }, svg("path", { class: "stripe thin", d: "M0 4.5H5" })),
    svg("pattern", { id: "waiting", width: 5, height: 5, patternUnits: "userSpaceOnUse", patternTransform: "rotate(-45)" }, svg("path", { class: "waiting", d: "M0 0V5" }))));
  const x = (at) => left + ((at - begin) / (end - begin)) * (width - left - right);
  const [unit, unitName] = end - begin > 3 * 3600 ? [3600, "hours"] : end - begin > 180 ? [60, "minutes"] : [1, "seconds"];
  for (const at of ticks(0, (end - begin) / unit, Math.max(2, Math.floor(width / 110)))) {
    const place = x(begin + at * unit);
    figure.append(svg("path", { class: "axis", d: `M${place.toFixed(1)} 0V${height - below}` }));
    figure.append(svg("text", { x: place.toFixed(1), y: height - below + 14, "text-anchor": place > width - 20 ? "end" : "middle" }, short(at)));
  }
  figure.append(svg("text", { x: width - right, y: height - 4, "text-anchor": "end" }, `${unitName} since the first job started`));
  const each = Math.max(1, Math.ceil(13 / lane));
  names.forEach((name, place) => {
    if (place % each === 0) figure.append(svg("text", { x: left - 6, y: place * lane + lane / 2 + 4, "text-anchor": "end" }, name));
  });
  for (const bar of bars) {
    for (const name of bar.lanes) {
      const top = names.indexOf(name) * lane + 1, from = x(bar.begin), wide = Math.max(1.5, x(bar.end ?? now) - from);
      const box = { x: from.toFixed(1), y: top.toFixed(1), width: wide.toFixed(1), height: (lane - 2).toFixed(1), rx: 2 };
      const drawn = svg("a", { href: bar.href, class: `is-${bar.state}`, "aria-label": bar.title }, svg("title", {}, bar.title), svg("rect", { class: "bar", ...box }));
      if (PATTERNS[bar.state]) drawn.append(svg("rect", { ...box, fill: `url(#${PATTERNS[bar.state]})` }));
      if (bar.delay > 0.05) drawn.append(svg("rect", { class: "wait", ...box, y: (top + (lane - 2) * (1 - Math.min(1, bar.delay))).toFixed(1), height: ((lane - 2) * Math.min(1, bar.delay)).toFixed(1) }));
      const letters = Math.floor((wide - 8) / 6.2);
      if (lane >= 13 && letters >= 4) drawn.append(svg("text", { class: "bar-name", x: (from + 5).toFixed(1), y: (top + lane / 2 + 2.5).toFixed(1) }, bar.name.length > letters ? `${bar.name.slice(0, letters - 1)}…` : bar.name));
      figure.append(drawn);
    }
  }
  return figure;
}
