// The table of jobs.

import { decimal, duration, element, number, percent } from "./charts.js";
import { setSource } from "./stream.js";
import { SortedTable, TableRow } from "./table.js";

// In the order of the table.
export const SYMBOLS = { RUNNING: "▶", FAILED: "✗", PAUSED: "‖", PENDING: "○", CANCELLED: "⊘", SUCCEEDED: "✓" };
export const STATES = Object.keys(SYMBOLS);
const SHOWN_AT_FIRST = 30;

const fields = document.body.dataset.fields.split(" ");

export function jobOf(id, values) {
  const job = { id };
  fields.forEach((field, place) => { job[field] = values[place]; });
  job.activity ??= job.state;
  return job;
}

export function jobHref(id) { return `#job=${encodeURIComponent(id)}`; }

// Relative to `root`, as all addresses of what is asked of the server.
export function jobPath(key, id) { return `api/${key}/jobs/${encodeURIComponent(id)}`; }

// Of its preview, as it was drawn last.
export function thumbnailPath(key, job) { return `${jobPath(key, job.id)}/thumbnail.jpg?${job.drawn}`; }

const hasPreview = (job) => Boolean(job.media & 1);

export function elapsed(job, now) {
  const running = job.state === "RUNNING" && job.started !== null ? now - job.started : 0;
  return job.wall === null && !running ? null : (job.wall ?? 0) + running;
}

export function remaining(job) {
  return job.state === "RUNNING" && job.rate ? Math.max(0, (job.goal ?? job.total) - job.steps) / job.rate : null;
}

function stateText(job) {
  const activity = job.state === "RUNNING" || job.activity !== job.state ? job.activity : job.state.toLowerCase();
  return `${SYMBOLS[job.state]} ${activity.toLowerCase()}${job.cause === "rung" ? " at a rung" : ""}`;
}

export function hasLineage(job) { return job.lineage !== null && job.lineage !== job.steps; }

const returns = (job) => (job.first !== null && job.ret !== null ? `${decimal(job.first)} → ${decimal(job.ret)}` : decimal(job.ret));

const measuresOf = (jobs) => new Set(jobs.map((job) => job.measure).filter(Boolean));

const COLUMNS = [
  { name: "job", text: (job) => job.id, value: (job) => job.id },
  { name: "state", text: stateText, value: (job) => STATES.indexOf(job.state) },
  { name: "return", number: true, phone: true, text: returns, value: (job) => job.ret },
  { name: "evaluated", number: true, rank: 2, text: (job) => decimal(job.evaluated), value: (job) => job.evaluated },
  { name: "measure", number: true, rank: 3, text: (job) => number(job.measured), value: (job) => job.measured },
  { name: "done", phone: true, text: (job) => percent(job.share), value: (job) => job.share },
  { name: "env_steps", number: true, rank: 3, text: (job) => number(job.steps || null), value: (job) => job.steps },
  { name: "lineage", number: true, rank: 3, text: (job) => number(job.lineage), value: (job) => job.lineage },
  { name: "env_steps/s", number: true, rank: 2, text: (job) => number(job.rate), value: (job) => job.rate },
  { name: "ETA", number: true, text: (job) => duration(remaining(job)), value: remaining },
  { name: "time", number: true, rank: 2, text: (job, now) => duration(elapsed(job, now)), value: elapsed },
  { name: "CPU", number: true, rank: 3, text: (job) => percent(job.cpu), value: (job) => job.cpu },
  { name: "wait", number: true, text: (job) => percent(job.delay === null ? null : Math.min(1, job.delay)), value: (job) => job.delay },
  { name: "attempts", number: true, rank: 3, text: (job) => String(job.attempts || "–"), value: (job) => job.attempts },
  { name: "on CPU", rank: 3, text: (job) => (job.state === "RUNNING" ? [job.node, (job.cpus ?? []).join(",")].filter(Boolean).join(" ") : ""), value: (job) => (job.cpus ?? [])[0] },
];
const placeOf = (name) => COLUMNS.findIndex((column) => column.name === name);
const MEASURE = placeOf("measure"), DONE = placeOf("done"), TIME = placeOf("time"), JOB = placeOf("job");
export const HIGH_WAIT = 0.15;

class JobRow extends TableRow {
  constructor(key, id) {
    super(id, COLUMNS);
    this.key = key;
    this.link = element("a", { href: jobHref(id) }, id);
    this.message = element("span", { class: "message", hidden: "" });
    this.cells[JOB].append(this.link, this.message);
    this.share = element("i", { "aria-hidden": "true" });
    this.shareText = element("b");
    this.cells[DONE].append(element("span", { class: "done" }, this.shareText, this.share));
  }

  show(column, cell, text, job) {
    if (column.name === "done") this.shareText.textContent = text;
    else if (column.name !== "job") super.show(column, cell, text, job);
    if (column.name === "wait") cell.classList.toggle("waits", job.delay > HIGH_WAIT);
    if (column.name === "return") {
      cell.classList.toggle("up", job.first !== null && job.ret > job.first);
      cell.classList.toggle("down", job.first !== null && job.ret < job.first);
    }
  }

  update(job, now, has) {
    super.update(job, now, has);
    if (this.shareValue !== job.share || this.state !== job.state) {
      this.shareValue = job.share;
      this.state = job.state;
      this.share.className = `is-${job.state}`;
      this.share.style.setProperty("--share", job.share ?? 0);
    }
    if (hasPreview(job)) this.updatePicture(thumbnailPath(this.key, job));
    if (this.text !== job.message) {
      this.text = job.message;
      this.message.textContent = job.message ?? "";
      this.message.title = job.message ?? "";
      this.message.hidden = !job.message;
    }
  }

  // Its name stands beside it, so the picture needs no other text.
  updatePicture(path) {
    if (this.picturePath === path) return;
    this.picturePath = path;
    this.picture ??= element("img", { alt: "", loading: "lazy" });
    this.link.prepend(this.picture);
    setSource(this.picture, path);
  }
}

export class JobsTable extends SortedTable {
  constructor(key, store) {
    super("jobs", store, { columns: COLUMNS, states: SYMBOLS, first: SHOWN_AT_FIRST, noun: "jobs", prefix: "job:" });
    this.key = key;
  }

  get jobs() { return this.items; }

  itemOf(id, values) { return jobOf(id, values); }

  rowOf(job) { return new JobRow(this.key, job.id); }

  textOf(job) { return [job.id, job.task, job.cause, job.message, job.activity].join(" "); }

  compareAlike(a, b) { return a.position - b.position; }

  isShown(name, jobs) {
    if (name === "measure") return measuresOf(jobs).size === 1;
    if (name === "lineage") return jobs.some(hasLineage);
    if (name === "evaluated") return jobs.some((job) => job.evaluated !== null);
    return !["ETA", "CPU", "wait", "on CPU"].includes(name) || jobs.some((job) => job.state === "RUNNING");
  }

  draw(now) {
    const jobs = [...this.jobs.values()], measures = measuresOf(jobs);
    if (measures.size === 1) this.heads[MEASURE].firstChild.textContent = [...measures][0];
    this.table.classList.toggle("pictured", jobs.some(hasPreview));
    super.draw(now);
  }

  // Once a second: what changes with the clock.
  tick() {
    const now = this.store.now();
    for (const id of this.shown ?? []) {
      const job = this.jobs.get(id);
      if (job?.state === "RUNNING") {
        const row = this.rows.get(id), text = COLUMNS[TIME].text(job, now);
        if (row && row.texts[TIME] !== text) {
          row.cells[TIME].textContent = text;
          row.texts[TIME] = text;
        }
      }
    }
  }
}
