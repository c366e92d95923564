// The table of jobs: sorted, filtered, and updated cell by cell.

import { decimal, duration, element, number, percent } from "./charts.js";
import { setSource } from "./stream.js";

export const SYMBOLS = { RUNNING: "▶", PENDING: "○", PAUSED: "‖", SUCCEEDED: "✓", FAILED: "✗", CANCELLED: "⊘" };
export const STATES = ["RUNNING", "FAILED", "PAUSED", "PENDING", "CANCELLED", "SUCCEEDED"];
const SHOWN_AT_FIRST = 30, MORE = 500, SORT_EVERY_MS = 3000;

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

// `text` is what the cell says, `value` what it is sorted by; the higher its rank, the wider the window that shows it.
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
const STATE = placeOf("state"), MEASURE = placeOf("measure"), DONE = placeOf("done"), TIME = placeOf("time");
const JOB = placeOf("job");
export const HIGH_WAIT = 0.15;

class Row {
  constructor(key, id) {
    this.key = key;
    this.texts = [];
    this.tr = element("tr", { "data-id": id });
    this.cells = COLUMNS.map((column) => element("td", { class: [column.number ? "number" : "", column.phone ? "phone" : "", column.rank ? `rank${column.rank}` : ""].join(" ").trim() || null }));
    this.link = element("a", { href: jobHref(id) }, id);
    this.message = element("span", { class: "message", hidden: "" });
    this.cells[JOB].append(this.link, this.message);
    this.share = element("i", { "aria-hidden": "true" });
    this.shareText = element("b");
    this.cells[DONE].append(element("span", { class: "done" }, this.shareText, this.share));
    this.tr.append(...this.cells);
  }

  update(job, now, has) {
    COLUMNS.forEach((column, place) => {
      const text = column.text(job, now);
      if (this.texts[place] === text) return;
      this.texts[place] = text;
      if (place === DONE) this.shareText.textContent = text;
      else if (place !== JOB) this.cells[place].textContent = text;
      if (place === STATE) this.cells[place].className = `state is-${job.state}${text.length > 24 ? " long" : ""}`;
      if (column.name === "wait") this.cells[place].classList.toggle("waits", job.delay > HIGH_WAIT);
      if (column.name === "return") {
        this.cells[place].classList.toggle("up", job.first !== null && job.ret > job.first);
        this.cells[place].classList.toggle("down", job.first !== null && job.ret < job.first);
      }
    });
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
    for (const [place, shown] of has.entries()) this.cells[place].hidden = !shown;
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

export class JobsTable {
  constructor(key, store) {
    this.key = key;
    this.store = store;
    this.jobs = new Map();
    this.rows = new Map();
    this.order = [];
    this.sort = { column: STATE, down: false, isDefault: true };
    this.states = new Set();
    this.limit = SHOWN_AT_FIRST;
    this.sortedAt = 0;
    this.table = document.getElementById("jobs");
    this.body = this.table.tBodies[0];
    this.makeHead();
    this.filter = document.getElementById("filter");
    this.filter.addEventListener("input", () => this.arrange());
    document.getElementById("more-jobs").addEventListener("click", () => { this.limit += MORE; this.arrange(); });
    document.addEventListener("keydown", (event) => this.onKey(event));
  }

  makeHead() {
    const sorter = document.getElementById("sorter");
    this.heads = COLUMNS.map((column, place) => {
      const button = element("button", { type: "button" }, column.name);
      button.addEventListener("click", () => this.sortBy(place));
      sorter.append(element("option", { value: place }, column.name));
      return element("th", { scope: "col", class: [column.number ? "number" : "", column.rank ? `rank${column.rank}` : ""].join(" ").trim() || null }, button);
    });
    sorter.value = String(STATE);
    sorter.addEventListener("change", () => this.sortBy(Number(sorter.value)));
    this.table.tHead.rows[0].append(...this.heads);
  }

  sortBy(place) {
    const same = !this.sort.isDefault && this.sort.column === place;
    this.sort = { column: place, down: same ? !this.sort.down : Boolean(COLUMNS[place].number), isDefault: false };
    this.heads.forEach((head, at) => {
      if (at === place) head.setAttribute("aria-sort", this.sort.down ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    });
    document.getElementById("sorter").value = String(place);
    this.arrange();
  }

  // Takes in the jobs with these names; returns whether there are any at all.
  take(names) {
    for (const name of names) {
      if (!name.startsWith("job:")) continue;
      const id = name.slice(4), values = this.store.get(name);
      if (values === undefined) {
        this.jobs.delete(id);
        this.rows.get(id)?.tr.remove();
        this.rows.delete(id);
      } else this.jobs.set(id, jobOf(id, values));
    }
    this.arrange(Date.now() - this.sortedAt > SORT_EVERY_MS || this.order.length !== this.jobs.size);
    return this.jobs.size > 0;
  }

  matches(job, words) {
    if (this.states.size && !this.states.has(job.state)) return false;
    const text = [job.id, job.task, job.cause, job.message, job.activity].join(" ").toLowerCase();
    return words.every((word) => text.includes(word));
  }

  arrange(again = true) {
    const jobs = [...this.jobs.values()], now = this.store.now();
    if (again) {
      const { column, down } = this.sort, value = COLUMNS[column].value, sign = down ? -1 : 1;
      const compare = (a, b) => {
        const one = value(a, now), other = value(b, now);
        if (one === other) return a.position - b.position;
        if (one === null || one === undefined) return 1;
        if (other === null || other === undefined) return -1;
        return sign * (typeof one === "string" ? one.localeCompare(other, "en", { numeric: true }) : one - other);
      };
      this.order = jobs.sort(compare).map((job) => job.id);
      this.sortedAt = Date.now();
    }
    const words = this.filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    const fitting = this.order.filter((id) => this.jobs.has(id) && this.matches(this.jobs.get(id), words));
    this.shown = fitting.slice(0, this.limit);
    this.drawStates(jobs);
    this.draw(now);
    const left = fitting.length - this.shown.length;
    const more = document.getElementById("more-jobs");
    more.hidden = left <= 0;
    more.textContent = `Show ${Math.min(left, MORE).toLocaleString("en-US")} more`;
    const note = `${fitting.length.toLocaleString("en-US")} of ${jobs.length.toLocaleString("en-US")} jobs${left > 0 ? `, ${this.shown.length} shown` : ""}`;
    document.getElementById("jobs-note").textContent = fitting.length === jobs.length && left <= 0 ? "" : note;
  }

  draw(now) {
    const some = this.shown.map((id) => this.jobs.get(id));
    const all = [...this.jobs.values()];
    const measures = new Set(all.map((job) => job.measure).filter(Boolean));
    const anyRunning = all.some((job) => job.state === "RUNNING");
    const isShown = (name) => {
      if (name === "measure") return measures.size === 1;
      if (name === "lineage") return all.some(hasLineage);
      if (name === "evaluated") return all.some((job) => job.evaluated !== null);
      return anyRunning || !["ETA", "CPU", "wait", "on CPU"].includes(name);
    };
    const has = COLUMNS.map(({ name }) => isShown(name));
    this.heads.forEach((head, place) => { head.hidden = !has[place]; });
    if (measures.size === 1) this.heads[MEASURE].firstChild.textContent = [...measures][0];
    this.table.classList.toggle("pictured", all.some(hasPreview));
    const focused = this.body.contains(document.activeElement) ? document.activeElement : null;
    let at = this.body.firstElementChild;
    for (const job of some) {
      let row = this.rows.get(job.id);
      if (row === undefined) this.rows.set(job.id, row = new Row(this.key, job.id));
      row.update(job, now, has);
      if (row.tr === at) at = at.nextElementSibling;
      else this.body.insertBefore(row.tr, at);
    }
    while (at) { const next = at.nextElementSibling; at.remove(); at = next; }
    if (focused !== document.activeElement) focused?.focus({ preventScroll: true });
  }

  drawStates(jobs) {
    const box = document.getElementById("states");
    const counts = Object.fromEntries(STATES.map((state) => [state, jobs.filter((job) => job.state === state).length]));
    const wanted = STATES.filter((state) => counts[state] || this.states.has(state));
    const key = wanted.map((state) => `${state}${counts[state]}${this.states.has(state)}`).join();
    if (key === this.statesKey) return;
    this.statesKey = key;
    const focused = document.activeElement?.dataset?.state;
    box.replaceChildren(...wanted.map((state) => {
      const pressed = this.states.has(state);
      const button = element("button", { type: "button", class: `is-${state}`, "data-state": state, "aria-pressed": String(pressed) }, `${SYMBOLS[state]} ${counts[state].toLocaleString("en-US")} ${state.toLowerCase()}`);
      button.addEventListener("click", () => {
        if (pressed) this.states.delete(state);
        else this.states.add(state);
        this.arrange();
      });
      return button;
    }));
    if (focused) box.querySelector(`[data-state="${focused}"]`)?.focus();
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

  onKey(event) {
    const typing = event.target.matches?.("input, textarea, select");
    if (event.key === "/" && !typing) { event.preventDefault(); this.filter.focus(); return; }
    if (event.key === "Escape" && event.target === this.filter) { this.filter.value = ""; this.arrange(); this.filter.blur(); return; }
    if (!["ArrowDown", "ArrowUp"].includes(event.key) || (typing && event.target !== this.filter) || document.querySelector("dialog[open]")) return;
    const links = [...this.body.querySelectorAll("a")];
    const at = links.indexOf(document.activeElement);
    if (at < 0 && event.target !== this.filter) return;
    event.preventDefault();
    links[Math.max(0, at + (event.key === "ArrowDown" ? 1 : -1))]?.focus();
  }
}
