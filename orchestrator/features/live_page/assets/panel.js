// One job, opened: its curves, its log as it is written, its video and its facts.

import { decimal, element, lineChart, number, percent } from "./charts.js";
import { SYMBOLS, jobPath, hasLineage } from "./jobs.js";
import { follow, freeSources, json, setSource } from "./stream.js";

const READ_EVERY_MS = 5000, MOST_LINES = 4000;

export class Panel {
  constructor(key, table, store) {
    Object.assign(this, { key, table, store });
    this.dialog = document.getElementById("panel");
    this.id = null;
    this.dialog.addEventListener("close", () => {
      this.leave();
      if (location.hash.startsWith("#job=")) history.replaceState(null, "", location.pathname + location.search);
    });
    this.dialog.addEventListener("click", (event) => { if (event.target === this.dialog) this.dialog.close(); });
    addEventListener("hashchange", () => this.openFromAddress());
  }

  openFromAddress() {
    const found = /^#job=(.+)$/.exec(location.hash), id = found && decodeURIComponent(found[1]);
    if (id === this.id) return;
    if (id && this.table.jobs.has(id)) this.open(id);
    else if (!found && this.dialog.open) this.dialog.close();
  }

  leave() {
    this.endLog?.();
    this.endLog = null;
    freeSources(this.media);
    clearTimeout(this.again);
    this.id = null;
  }

  open(id) {
    this.leave();
    this.id = id;
    this.readAt = 0;
    const box = (name, tag = "div") => (this[name] = element(tag));
    const close = element("button", { type: "button", "aria-label": "Close" }, "✕");
    close.addEventListener("click", () => this.dialog.close());
    this.log = element("pre", { class: "log", tabindex: "0", "aria-label": "Log" });
    this.chosen = element("select", { "aria-label": "Attempt" });
    this.chosen.addEventListener("change", () => this.followLog());
    this.rank = element("select", { "aria-label": "Rank" });
    this.rank.addEventListener("change", () => this.followLog());
    this.dialog.replaceChildren(
      element("div", { class: "top" }, element("div", {}, element("h2", { id: "panel-title" }, id), box("state", "p")), close),
      box("problem"), box("curve"), box("speed"), box("media"),
      element("h3", {}, "Log ", this.chosen, " ", this.rank), box("logState", "p"), this.log, element("h3", {}, "Facts"), box("facts"), box("attempts"));
    this.logState.setAttribute("role", "status");
    const ranks = this.table.jobs.get(id).ranks;
    this.rank.replaceChildren(...Array.from({ length: ranks }, (_, place) => element("option", { value: place }, `rank ${place}`)));
    this.rank.hidden = ranks < 2;
    this.dialog.showModal();
    this.dialog.scrollTop = 0;
    this.update(true);
  }

  // To be called when the row of the job has changed.
  update(isNew = false) {
    const job = this.table.jobs.get(this.id);
    if (!job) return;
    const lineage = hasLineage(job) ? `, with its lineage ${number(job.lineage)}${job.parent ? ` (started from ${job.parent})` : ""}` : "";
    this.state.textContent = `${SYMBOLS[job.state]} ${job.activity.toLowerCase()} · ${number(job.steps)} of ${number(job.total)} env_steps${lineage} · return ${decimal(job.ret)}`;
    this.state.className = `is-${job.state} state long`;
    this.drawMedia(job);
    if (job.attempts !== this.attempted || isNew) {
      this.attempted = job.attempts;
      const options = Array.from({ length: job.attempts }, (_, place) => element("option", { value: place + 1 }, `attempt ${place + 1}`));
      this.chosen.replaceChildren(...options);
      this.chosen.value = String(job.attempts);
      this.chosen.hidden = job.attempts < 2;
      this.followLog();
    }
    const due = this.readAt + READ_EVERY_MS - Date.now();
    clearTimeout(this.again);
    if (due <= 0) this.read();
    else this.again = setTimeout(() => this.read(), due);
  }

  drawMedia(job) {
    const key = `${this.id} ${job.media} ${job.drawn}`;
    if (key === this.mediaKey && this.media.children.length) return;
    this.mediaKey = key;
    const path = jobPath(this.key, this.id);
    const parts = [];
    if (job.media & 2) {
      const video = element("video", { controls: "", preload: "metadata", "aria-label": `Video of ${this.id}` });
      setSource(video, `${path}/video.mp4?${job.drawn}`);
      parts.push(video);
    }
    if (job.media & 1) {
      const image = element("img", { alt: `Picture of ${this.id}` });
      setSource(image, `${path}/preview.png?${job.drawn}`);
      parts.push(image);
    }
    freeSources(this.media);
    this.media.replaceChildren(...(parts.length ? [element("h3", {}, "Robot"), ...parts] : []));
  }

  async read() {
    const id = this.id;
    this.readAt = Date.now();
    const facts = await json(jobPath(this.key, id)).catch(() => null);
    if (facts === null || id !== this.id) return;
    const width = Math.max(300, this.dialog.clientWidth - 40), job = this.table.jobs.get(id);
    this.problem.replaceChildren(...(facts.message && facts.state !== "SUCCEEDED" ? [element("p", { class: "note" }, facts.message)] : []),
      ...(facts.traceback ? [element("details", {}, element("summary", {}, "Traceback"), element("pre", { class: "log" }, facts.traceback))] : []));
    this.curve.replaceChildren(...(facts.curve.length ? [element("h3", {}, "Return"), lineChart({ label: `Return of ${id}`, width, height: 220, xLabel: "env_steps", xEnd: job?.total ?? 0, series: [{ name: id, points: facts.curve, style: "s0" }] })] : []));
    const waits = facts.times.filter((one) => one[2] !== null).map(([steps, , wait]) => [steps, Math.min(100, 100 * wait)]);
    const rates = facts.times.map(([steps, rate]) => [steps, rate]);
    const half = width >= 700 ? Math.floor(width / 2) - 12 : width;
    this.speed.className = "columns";
    this.speed.replaceChildren(
      ...(rates.some((one) => one[1]) ? [element("div", {}, element("h3", {}, "env_steps/s"), lineChart({ label: "env_steps per second", width: half, height: 150, zero: true, xLabel: "env_steps", series: [{ name: "env_steps/s", points: rates, style: "s2" }] }))] : []),
      ...(waits.length ? [element("div", {}, element("h3", {}, "Waiting for a CPU, % of the time"), lineChart({ label: `Share of time spent waiting for a CPU, now ${percent(job?.delay ?? null)}`, width: half, height: 150, zero: true, top: 10, xLabel: "env_steps", series: [{ name: "wait", points: waits, style: "s4" }] }))] : []));
    const list = element("dl", { class: "facts" });
    const named = { ...facts.facts, ...Object.fromEntries(Object.entries(facts.measures).map(([name, value]) => [`measure ${name}`, value])) };
    for (const [name, value] of Object.entries(named)) list.append(element("dt", {}, name), element("dd", {}, typeof value === "number" ? number(value) : value ?? "–"));
    this.facts.replaceChildren(list);
    const ended = facts.ended.filter((one) => one.ended !== null && one.outcome !== "succeeded");
    this.attempts.replaceChildren(...(ended.length ? [element("h3", {}, "Attempts that did not succeed"), element("ul", {}, ...ended.map((one) => element("li", {}, `attempt ${one.number}: ${one.outcome}, ${one.message ?? one.cause}`)))] : []));
  }

  followLog() {
    this.endLog?.();
    this.log.textContent = this.logState.textContent = "";
    if (!this.attempted) { this.log.textContent = "No output yet: the job has not been launched."; return; }
    const { log, logState } = this;
    const path = `${jobPath(this.key, this.id)}/log?attempt=${this.chosen.value}&rank=${this.rank.value}`;
    this.endLog = follow(() => path, (name, text) => {
      const atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 30;
      log.append(text);
      while (log.childNodes.length > 1 && log.textContent.length > 200 * MOST_LINES) log.firstChild.remove();
      if (atEnd) log.scrollTop = log.scrollHeight;
    }, (state) => {
      if (state === "open") log.textContent = "";
      logState.textContent = state === "open" ? "" : `○ ${state}; trying again …`;
    });
  }
}
