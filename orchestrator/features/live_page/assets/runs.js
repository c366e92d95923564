// The table of experiments: those of a user, of a folder, or of all users of the machine.

import { duration, element, number, percent } from "./charts.js";
import { STATES } from "./jobs.js";
import { SortedTable, TableRow } from "./table.js";

// In the order of the table.
const SYMBOLS = { running: "▶", paused: "‖", interrupted: "!", unreadable: "✗", finished: "✓" };
const SHOWN_AT_FIRST = 200;

const decimal = (value) => (value === null ? "–" : value.toFixed(1));

function bytes(mib) {
  if (mib === null) return "–";
  return mib >= 1024 ? `${(mib / 1024).toFixed(1)} GiB` : `${mib < 10 ? mib.toFixed(1) : Math.round(mib)} MiB`;
}

const jobsText = ({ counts }) => STATES.filter((state) => counts[state]).map((state) => `${number(counts[state])} ${state.toLowerCase()}`).join(", ");

const jobsOf = ({ counts }) => Object.values(counts).reduce((sum, one) => sum + one, 0);

// [0, 1, 2, 3, 8] → "0-3, 8".
function rangesText(cpus) {
  const ranges = [];
  for (const cpu of cpus) {
    const last = ranges.at(-1);
    if (last?.end === cpu - 1) last.end = cpu;
    else ranges.push({ start: cpu, end: cpu });
  }
  return ranges.map(({ start, end }) => (start === end ? start : `${start}-${end}`)).join(", ");
}

const dateText = (seconds) => (seconds === null ? "–" : new Date(seconds * 1000).toLocaleString("sv").slice(0, 16));

const COLUMNS = [
  { name: "experiment", text: (run) => run.name, value: (run) => run.name },
  { name: "state", text: (run) => `${SYMBOLS[run.state]} ${run.state}`, value: (run) => Object.keys(SYMBOLS).indexOf(run.state) },
  { name: "user", phone: true, text: (run) => run.user, value: (run) => run.user },
  { name: "jobs", rank: 2, falls: true, text: jobsText, value: jobsOf },
  { name: "cores", number: true, phone: true, text: (run) => number(run.cpus.length || null), value: (run) => run.cpus.length },
  { name: "on CPU", phone: true, text: (run) => rangesText(run.cpus) || "–", value: (run) => run.cpus[0] },
  { name: "load", number: true, phone: true, text: (run) => decimal(run.load), value: (run) => run.load },
  { name: "memory", number: true, phone: true, text: (run) => bytes(run.memory_mib), value: (run) => run.memory_mib },
  { name: "disk", number: true, rank: 2, text: (run) => bytes(run.disk_mib), value: (run) => run.disk_mib },
  { name: "ETA", number: true, rises: true, phone: true, text: (run) => duration(run.eta_s), value: (run) => run.eta_s },
  { name: "last run", rank: 2, falls: true, text: (run) => dateText(run.noted), value: (run) => run.noted },
  { name: "run directory", rank: 2, text: (run) => run.root, value: (run) => run.root },
  { name: "supervisor", rank: 3, text: (run) => run.supervisor || "–", value: (run) => run.supervisor || null },
];

// What is not known of the experiments of a folder.
const OF_NO_MACHINE = { user: "", cpus: [], load: null, memory_mib: null, disk_mib: null, eta_s: null };
const OF_MACHINE = ["user", "cores", "on CPU", "load", "memory", "disk", "ETA"];

class RunRow extends TableRow {
  constructor(run) {
    super(run.id, COLUMNS);
    this.name = element("b", { tabindex: "-1" });
    this.message = element("span", { class: "message", hidden: "" });
    this.cells[0].append(this.name, this.message);
  }

  show(column, cell, text, run) {
    if (column.name === "experiment") this.name.textContent = text;
    else super.show(column, cell, text, run);
  }

  // The name is a link while the experiment may be opened.
  linkName(run) {
    if (run.may_open === (this.name.tagName === "A")) return;
    const name = run.may_open ? element("a", { href: `run/${run.id}` }) : element("b", { tabindex: "-1" });
    const hasFocus = document.activeElement === this.name;
    name.textContent = this.name.textContent;
    this.name.replaceWith(name);
    if (hasFocus) name.focus({ preventScroll: true });
    this.name = name;
  }

  update(run, now, has) {
    super.update(run, now, has);
    this.linkName(run);
    const text = run.problem || (jobsOf(run) || run.user ? "" : "the robots are examined");
    this.message.textContent = text;
    this.message.title = text;
    this.message.hidden = !text;
  }
}

export class RunsTable extends SortedTable {
  constructor(store) {
    super("runs", store, { columns: COLUMNS, states: SYMBOLS, first: SHOWN_AT_FIRST, noun: "experiments", prefix: "run:" });
  }

  itemOf(id, piece) { return { ...OF_NO_MACHINE, ...piece, id }; }

  rowOf(run) { return new RunRow(run); }

  textOf(run) { return [run.name, run.user, run.state, run.root, run.problem].join(" "); }

  compareAlike(a, b) { return b.noted - a.noted || a.user.localeCompare(b.user) || a.name.localeCompare(b.name, "en", { numeric: true }); }

  isShown(name, runs) {
    if (OF_MACHINE.includes(name)) return runs.some((run) => run.user);
    if (name === "supervisor") return runs.some((run) => run.supervisor);
    return name !== "last run" || runs.some((run) => run.noted !== null);
  }
}

// What stands above the table.
export function drawMachine({ machine }, runs) {
  const figures = [["running", number(runs.filter((run) => run.state === "running").length)], ["experiments", number(runs.length)]];
  if (machine) {
    figures.push(
      ["users", number(new Set(runs.map((run) => run.user)).size)],
      ["cores held", `${machine.held} / ${machine.cpus}`],
      ["load", machine.load.toFixed(1)],
      ["memory", percent(machine.memory_mib / machine.memory_total_mib)],
    );
  }
  document.getElementById("totals").replaceChildren(...figures.map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, value))));
}
