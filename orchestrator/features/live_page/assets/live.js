// The page of an experiment, or of all of them: connects, and draws what has changed, at most once a frame.

import { JobsTable } from "./jobs.js";
import { Curves, Gallery, drawFindings, drawHead, drawSchedule, drawSections, refill } from "./overview.js";
import { Panel } from "./panel.js";
import { RunsTable, drawTotals } from "./runs.js";
import { Store, follow, hasToken, needsToken } from "./stream.js";

const { key, folder } = document.body.dataset;
const SLOW_MS = 2000, RELOAD_MS = 1000;
const byId = (id) => document.getElementById(id);

function showLink(state) {
  const link = byId("link"), open = state === "open";
  const gone = key !== "this" && /^404: (.*)/s.exec(state);  // it is looked for again, as it may come back
  link.textContent = open ? "● live" : gone ? `○ ${gone[1]}` : `○ ${state}; trying again …`;
  link.classList.toggle("lost", !open);
  if (key === "this" && state.startsWith("404")) reloadSoon();
  if (state.startsWith("401")) link.textContent = "This needs the token: open the whole address that `serve` has printed.";
}

// What is shown was read when somebody last looked; it is being read anew.
function showStale(readAt) {
  const time = new Date(readAt * 1000).toLocaleString();
  byId("link").textContent = `○ as of ${time}; reading …`;
}

function take(store, name, data) {
  if (name === "stale") showStale(data);
  else if (name === "current") showLink("open");
  else store.take(name, data);
}

// Draws what has come with the page, and then what has changed since.
function showFirstAndFollow(store, path) {
  const first = byId("first");
  if (first) store.begin(JSON.parse(first.textContent));
  follow(() => store.onwards(path), (name, data) => take(store, name, data), showLink);
}

// A folder with experiments has come where a run directory was awaited, or the other way round: that is another page.
let reloading = 0;
function reloadSoon() { reloading ||= setTimeout(() => location.reload(), RELOAD_MS); }

// Links to those parts of the page that there are.
function drawParts() {
  const parts = [...document.querySelectorAll("main section:not([hidden])")];
  const titleOf = (part) => part.querySelector("h2").textContent;
  const names = parts.map((part) => `${part.id} ${titleOf(part)}`).join();
  if (names === byId("parts").dataset.names) return;
  byId("parts").dataset.names = names;
  refill(byId("parts"), ...parts.map((part) => {
    const link = document.createElement("a");
    link.href = `#${part.id}`;
    link.textContent = titleOf(part);
    return link;
  }));
}

// Collects what has changed, and draws it in the next frame.
function drawing(draw) {
  let names = new Set(), asked = false;
  return (changed) => {
    for (const name of changed) names.add(name);
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => { const taken = names; names = new Set(); asked = false; draw(taken); });
  };
}

function showRun() {
  const store = new Store(drawing(draw)), table = new JobsTable(key, store);
  const panel = new Panel(key, table, store);
  const curves = new Curves(store, table.jobs), gallery = new Gallery(key, table.jobs);
  let slowAt = 0, slowNames = new Set(), slowTimer = 0;
  byId("up").hidden = folder !== "1";

  function drawSlow(everything = false) {
    clearTimeout(slowTimer);
    slowTimer = 0;
    slowAt = Date.now();
    curves.draw(slowNames, everything);
    const isNew = everything || slowNames.has("attempts") || slowNames.has("delays");
    drawSchedule(table.jobs, store.get("attempts"), store.get("delays"), store.now(), isNew);
    gallery.draw();
    drawParts();
    slowNames = new Set();
  }

  function draw(changed) {
    const head = store.get("head");
    if (head === undefined) return;
    if (key === "this" && head.kind === "folder") reloadSoon();
    const any = table.take(changed);
    byId("jobs-section").hidden = !any;
    drawHead(head, [...table.jobs.values()], store.now());
    if (changed.has("findings")) drawFindings(store.get("findings"));
    if (changed.has("sections")) drawSections(store.get("sections"));
    for (const name of changed) slowNames.add(name);
    const due = slowAt + SLOW_MS - Date.now();
    if (slowAt === 0) {  // the table is painted first
      slowAt = Date.now();
      requestAnimationFrame(() => setTimeout(() => { window.orchestratorPainted = performance.now(); drawSlow(); }, 0));
    }
    else if (due <= 0) drawSlow();
    else if (!slowTimer) slowTimer = setTimeout(drawSlow, due);
    if (panel.id && changed.has(`job:${panel.id}`)) panel.update();
    else if (!panel.id) panel.openFromAddress();
  }

  setInterval(() => {
    const head = store.get("head");
    if (head && document.visibilityState === "visible") {
      if (head.condition === "running") drawHead(head, [...table.jobs.values()], store.now());
      table.tick();
    }
  }, 1000);
  let width = innerWidth;
  addEventListener("resize", () => {
    if (innerWidth === width) return;  // the address bar of a phone comes and goes
    width = innerWidth;
    drawSlow(true);
    drawSections(store.get("sections"));
  });
  showFirstAndFollow(store, `api/${key}/events`);
}

function showFolder() {
  const store = new Store(drawing(draw)), table = new RunsTable(store);

  function draw(changed) {
    const head = store.get("head");
    if (head === undefined) return;
    if (head.kind === "run") reloadSoon();
    byId("title").textContent = "Experiments";
    byId("condition").textContent = head.name;
    const any = table.take(changed);
    byId("runs-section").hidden = !any;
    byId("no-runs").hidden = any;
    drawTotals([...table.items.values()]);
    requestAnimationFrame(() => setTimeout(() => { window.orchestratorPainted ??= performance.now(); }, 0));
  }

  showFirstAndFollow(store, "api/runs/events");
}

if (needsToken && !hasToken) showLink("401");
else if (key) showRun();
else showFolder();
