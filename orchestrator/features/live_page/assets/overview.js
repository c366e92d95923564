// What stands around the table of an experiment: its state, contention, what features add, learning curves, schedule, robots.

import { STYLES, decimal, duration, element, gantt, legend, lineChart, lineStyle, number, percent, short } from "./charts.js";
import { elapsed, jobHref, thumbnailPath } from "./jobs.js";
import { setSource } from "./stream.js";

const MOST_PANELS = 24, ROBOTS = 24, SCHEDULE_MS = 10_000;
const BAR_STATES = { SUCCEEDED: "succeeded", RUNNING: "running", PAUSED: "paused or interrupted", FAILED: "failed", CANCELLED: "cancelled" };
const OUTCOMES = { succeeded: "SUCCEEDED", failed: "FAILED", interrupted: "PAUSED" };
const byId = (id) => document.getElementById(id);

// Replaces what is in `box`. What has the keyboard's focus in there keeps it, known by its address or its name.
export function refill(box, ...children) {
  const nameOf = (one) => one.getAttribute("href") ?? one.parentElement.dataset.name;
  const alike = (name) => [...box.querySelectorAll("a, summary")].filter((one) => nameOf(one) === name);
  const focused = box.contains(document.activeElement) ? document.activeElement : null;
  const name = focused && nameOf(focused), place = focused ? alike(name).indexOf(focused) : -1;
  box.replaceChildren(...children);
  if (place >= 0) alike(name)[place]?.focus({ preventScroll: true });
}

export function meter(box, counts) {
  const whole = Object.values(counts).reduce((sum, one) => sum + one, 0);
  box.hidden = !whole;
  const order = ["SUCCEEDED", "RUNNING", "PAUSED", "FAILED", "CANCELLED", "PENDING"].filter((state) => counts[state]);
  box.setAttribute("aria-label", order.map((state) => `${counts[state]} ${state.toLowerCase()}`).join(", "));
  box.replaceChildren(...order.map((state) => {
    const part = element("i", { class: `is-${state}`, title: `${counts[state]} ${state.toLowerCase()}` });
    part.style.width = `${(100 * counts[state]) / whole}%`;
    return part;
  }));
}

export function drawHead(head, jobs, now) {
  document.title = `${head.counts?.RUNNING ? "▶ " : ""}${head.name}`;
  byId("title").textContent = head.name;
  byId("condition").textContent = head.text;
  byId("condition").title = head.root;
  meter(byId("progress"), head.counts ?? {});
  const note = [head.waiting, head.resume].filter(Boolean).join(" ");
  byId("note").hidden = !note;
  byId("note").textContent = note;
  const counts = head.counts ?? {}, total = jobs.length;
  const ended = (counts.SUCCEEDED ?? 0) + (counts.FAILED ?? 0) + (counts.CANCELLED ?? 0);
  const best = jobs.map((job) => job.ret).filter((value) => value !== null);
  const figures = !total ? [] : [
    ["ended", `${ended.toLocaleString("en-US")} / ${total.toLocaleString("en-US")}`],
    ...(counts.RUNNING ? [["running", counts.RUNNING.toLocaleString("en-US")]] : []),
    ...(head.condition === "running" && head.rate ? [["env_steps/s", number(head.rate)]] : []),
    ...(head.busy !== null && head.busy !== undefined ? [["cores busy", head.busy.toFixed(1)]] : []),
    ...(head.since ? [["elapsed", duration(now - head.since)]] : [["time of all jobs", duration(jobs.reduce((sum, job) => sum + (elapsed(job, now) ?? 0), 0))]]),
    ...(head.condition === "running" ? [["ETA", duration(head.remaining_s)]] : []),
    ...(best.length ? [["best return", decimal(Math.max(...best))]] : []),
  ];
  byId("totals").replaceChildren(...figures.map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, value))));
}

function jobLinks(ids, most = 6) {
  const parts = [];
  ids.slice(0, most).forEach((id, place) => parts.push(place ? ", " : "", element("a", { href: jobHref(id) }, id)));
  if (ids.length > most) parts.push(` and ${ids.length - most} more`);
  return parts;
}

let told = new Set();

// Says what has arisen, once: the list itself changes with every figure in it.
function tellFindings(findings) {
  const news = findings.filter((one) => !told.has(`${one.when} ${one.kind}`));
  told = new Set(findings.map((one) => `${one.when} ${one.kind}`));
  if (news.length) byId("findings-news").textContent = `Contention: ${news.map((one) => `${one.what} (${one.when})`).join("; ")}`;
}

export function drawFindings(findings) {
  tellFindings(findings ?? []);
  byId("findings-section").hidden = !findings?.length;
  const open = new Set([...document.querySelectorAll("#findings details[open]")].map((one) => one.dataset.name));
  refill(byId("findings"), ...(findings ?? []).map((one) => {
    const name = `${one.when} ${one.kind} ${one.job_ids}`;
    return element("li", {}, element("details", { "data-name": name, open: open.has(name) ? "" : null },
      element("summary", {}, element("strong", {}, `⚠ ${one.what[0].toUpperCase()}${one.what.slice(1)}`), " ", element("span", { class: "when" }, `(${one.when})`)),
      element("p", {}, `${one.evidence}.`), ...(one.job_ids.length ? [element("p", {}, ...jobLinks(one.job_ids))] : []),
      element("p", {}, `Cure: ${one.cure}.`)));
  }));
}

function table(columns, rows, label) {
  const head = element("tr", {}, ...columns.map(([name, , kind]) => element("th", { scope: "col", class: kind === "number" ? "number" : null }, name)));
  const body = rows.map((row) => element("tr", {}, ...columns.map(([name, cell, kind]) => {
    const content = cell(row);
    return element("td", { class: kind === "number" ? "number" : null, "data-label": name }, ...(Array.isArray(content) ? [element("span", {}, ...content)] : [content]));
  })));
  return element("table", { class: "cards", "aria-label": label }, element("thead", {}, head), element("tbody", {}, ...body));
}

// -- what features show of the run directory

const CELLS = { number, steps: short, value: decimal };
const NUMBERS = ["number", "value"];
const isNumber = (value) => typeof value === "number";

// A function of a cell's value that gives what is shown of it. `values`: all of the column.
function cellsOf(kind, values) {
  if (kind === "jobs") return (ids) => (ids === null ? "–" : jobLinks([ids].flat(), 3));
  const most = Math.max(1, ...values.filter(isNumber));
  const ofNumber = kind === "bar" ? (value) => [`${value} `, bar(value / most)] : CELLS[kind] ?? String;
  return (value) => (isNumber(value) ? ofNumber(value) : String(value ?? "–"));
}

function sectionTable({ title, columns, rows }) {
  const cells = columns.map(({ name, kind }, place) => {
    const shown = cellsOf(kind, rows.map((row) => row[place]));
    return [name, (row) => shown(row[place]), NUMBERS.includes(kind) ? "number" : undefined];
  });
  return element("div", { class: "scroll" }, element("h3", {}, title), table(cells, rows, title));
}

function bar(share) {
  const drawn = element("i", { class: "rung", "aria-hidden": "true" });
  drawn.style.width = `${5 * share}rem`;
  return drawn;
}

// The height is that of `.chart` in page.css, so that the page does not jump when the chart is drawn.
function drawChart(box, { title, x, y, series }) {
  const lines = series.filter((one) => !one.is_dots);
  const dashes = (one) => (one.is_dots ? "" : ` d${lines.indexOf(one) % 4}`);
  const drawn = series.map((one, place) => ({
    name: one.name, points: one.points, style: `s${place % STYLES}${dashes(one)}`, dots: one.is_dots, steps: one.is_steps,
    title: one.is_dots ? (at, value) => `${one.name} ${at}: ${number(value)}` : undefined,
  }));
  const height = box.clientHeight;
  box.replaceChildren(lineChart({ label: title, width: box.clientWidth || 600, height, xLabel: x, yLabel: y, series: drawn }));
  box.after(...legend(drawn));
}

// A section: its text, its charts, then its tables. Where there are charts and several tables, the first stands beside the charts.
function sectionOf({ title, text, charts, tables }, place) {
  const boxes = charts.map(() => element("div", { class: "charted" }, element("div", { class: "chart" })));
  const drawn = tables.map(sectionTable);
  const beside = boxes.length && drawn.length > 1 ? [drawn.shift()] : [];
  const columns = boxes.length ? [element("div", { class: "columns" }, ...boxes, ...beside)] : [];
  return element("section", { id: `feature-${place}` }, element("h2", {}, title), element("p", {}, text), ...columns, ...drawn);
}

const scrolledTables = () => [...document.querySelectorAll("#sections .scroll")];

// Draws what features show of the run directory: a section for each.
export function drawSections(sections) {
  const scrolled = scrolledTables().map((one) => one.scrollLeft);
  refill(byId("sections"), ...(sections ?? []).map(sectionOf));
  const charts = (sections ?? []).flatMap((one) => one.charts);
  document.querySelectorAll("#sections .chart").forEach((box, place) => drawChart(box, charts[place]));
  scrolledTables().forEach((one, place) => { one.scrollLeft = scrolled[place] ?? 0; });
}

// -- learning curves

const groupOf = (job) => job.id.replace(/-s\d+$/, "");

export class Curves {
  constructor(store, jobs) { this.store = store; this.jobs = jobs; this.panels = new Map(); }

  points(job) {
    const known = this.store.lists.get(`curve:${job.id}`) ?? [];
    const last = known.at(-1);
    const live = job.ret !== null && job.steps && (!last || job.steps > last[0]) ? [[job.steps, job.ret]] : [];
    return [...known, ...live];
  }

  draw(changed, everything) {
    const groups = new Map();
    for (const job of this.jobs.values()) {
      if (!this.store.lists.has(`curve:${job.id}`)) continue;
      const group = groupOf(job);
      if (!groups.has(group)) groups.set(group, []);
      groups.get(group).push(job);
    }
    const drawable = [...groups].filter(([, jobs]) => jobs.some((job) => this.points(job).length));
    const rank = (jobs) => [jobs.some((job) => job.state === "RUNNING") ? 0 : 1, -Math.max(...jobs.map((job) => job.ret ?? -Infinity))];
    const chosen = drawable.length <= MOST_PANELS ? drawable
      : drawable.map((one) => [one, rank(one[1])]).sort(([, a], [, b]) => a[0] - b[0] || a[1] - b[1]).slice(0, MOST_PANELS).map(([one]) => one);
    byId("curves-section").hidden = !chosen.length;
    byId("curves-note").textContent = chosen.length < drawable.length ? `${chosen.length} of ${drawable.length} are shown: those that run, then those with the highest returns. Every job has its own when it is opened.` : "";
    const kept = new Map();
    for (const [group, jobs] of chosen) {
      jobs.sort((a, b) => a.position - b.position);
      let panel = this.panels.get(group);
      const isNew = panel === undefined;
      if (isNew) panel = element("figure");
      if (isNew || everything || jobs.some((job) => changed.has(`job:${job.id}`) || changed.has(`curve:${job.id}`))) this.drawPanel(panel, group, jobs);
      kept.set(group, panel);
    }
    this.panels = kept;
    const box = byId("curves"), wanted = [...kept.values()];
    if (wanted.length !== box.children.length || wanted.some((panel, place) => box.children[place] !== panel)) refill(box, ...wanted);
  }

  drawPanel(panel, group, jobs) {
    const last = jobs.map((job) => job.ret).filter((value) => value !== null).sort((a, b) => a - b);
    const half = last.length >> 1;
    const middle = last.length ? decimal(last.length % 2 ? last[half] : (last[half - 1] + last[half]) / 2) : "–";
    const seeds = jobs.length > 1 ? ` · ${jobs.length} seeds` : "";
    refill(panel,
      element("figcaption", {}, element("a", { href: jobHref(jobs[0].id) }, group), element("span", {}, `${middle}${seeds}`)),
      lineChart({
        label: `Return of ${group}: ${middle}`, width: panel.clientWidth || 300, xEnd: Math.max(...jobs.map((job) => job.total)),
        series: jobs.map((job, place) => ({ name: job.id, points: this.points(job), style: lineStyle(place) })),
      }));
  }
}

// -- schedule

let scheduled = { states: "", at: 0 };

// Draws nothing where no job has moved since it was drawn, not long ago; `anew`: in any case. `delays`: of whole jobs.
export function drawSchedule(jobs, earlier, delays, now, anew) {
  const states = [...jobs.values()].map((job) => `${job.id} ${job.state} ${job.attempts}`).join();
  if (!anew && states === scheduled.states && Date.now() - scheduled.at < SCHEDULE_MS) return;
  scheduled = { states, at: Date.now() };
  const bars = [];
  const lanesOf = (node, cpus) => (cpus?.length ? cpus.map((cpu) => `${node ? `${node} ` : ""}CPU ${cpu}`) : [node || "somewhere"]);
  for (const one of earlier ?? []) {
    bars.push({ name: one.job, lanes: lanesOf(one.node, one.cpus), begin: one.started, end: one.ended ?? one.started, state: OUTCOMES[one.outcome], delay: 0, href: jobHref(one.job), title: `${one.job}, attempt ${one.number}: ${one.outcome}${one.cause ? ` (${one.cause})` : ""}` });
  }
  for (const job of jobs.values()) {
    if (!job.attempts || job.started === null) continue;
    const running = job.state === "RUNNING", state = job.state === "PENDING" ? "PAUSED" : job.state;
    const delay = job.delay ?? delays?.[job.id] ?? null;
    const wait = delay === null ? "" : `, ${running ? "waits" : "waited"} for a CPU ${percent(Math.min(1, delay))} of the time`;
    bars.push({ name: job.id, lanes: lanesOf(job.node, job.cpus), begin: job.started, end: running ? null : job.ended ?? job.started, state, delay: delay ?? 0, href: jobHref(job.id), title: `${job.id}: ${job.state.toLowerCase()}, ${duration((running ? now : job.ended ?? job.started) - job.started)}${wait}` });
  }
  byId("schedule-section").hidden = !bars.length;
  if (!bars.length) return;
  const box = byId("schedule");
  refill(box, gantt({ label: "Which job ran on which CPU, and when", bars, width: box.clientWidth || 900, now }));
  const used = Object.keys(BAR_STATES).filter((state) => bars.some((bar) => bar.state === state));
  const hatch = bars.some((bar) => bar.delay > 0.05) ? [element("span", { class: "hatch" }, "share of time spent waiting for a CPU")] : [];
  byId("schedule-legend").replaceChildren(...used.map((state) => element("span", { class: `is-${state}` }, `${BAR_STATES[state]}${{ FAILED: " (striped)", PAUSED: " (lined)", CANCELLED: " (lined)" }[state] ?? ""}`)), ...hatch);
}

// -- robots

export class Gallery {
  constructor(key, jobs) {
    this.key = key;
    this.jobs = jobs;
    this.limit = ROBOTS;
    this.cells = new Map();
    byId("more-robots").addEventListener("click", () => { this.limit += 4 * ROBOTS; this.draw(); });
  }

  draw() {
    const all = [...this.jobs.values()].filter((job) => job.media & 1).sort((a, b) => (b.ret ?? -Infinity) - (a.ret ?? -Infinity));
    const shown = all.slice(0, this.limit);
    byId("robots-section").hidden = !shown.length;
    byId("more-robots").hidden = all.length <= shown.length;
    const cells = shown.map((job) => this.cell(job));
    const box = byId("robots");
    if (cells.length !== box.children.length || cells.some((cell, place) => box.children[place] !== cell)) refill(box, ...cells);
  }

  cell(job) {
    let cell = this.cells.get(job.id);
    if (cell === undefined) {
      const image = element("img", { alt: `Picture of ${job.id}`, loading: "lazy" });
      cell = element("a", { href: jobHref(job.id) }, image, element("span", {}, element("b", {}, job.id), element("em")));
      this.cells.set(job.id, cell);
    }
    const path = thumbnailPath(this.key, job);
    if (cell.dataset.path !== path) setSource(cell.querySelector("img"), cell.dataset.path = path);
    cell.querySelector("em").textContent = `${job.media & 2 ? "▷ " : ""}${decimal(job.ret)}`;
    return cell;
  }
}
