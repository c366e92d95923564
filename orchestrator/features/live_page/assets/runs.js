// The table of experiments: those of a user, or of a folder.

import { element, number } from "./charts.js";
import { STATES } from "./jobs.js";
import { SortedTable, TableRow } from "./table.js";

// In the order of the table.
const SYMBOLS = { running: "▶", paused: "‖", interrupted: "!", unreadable: "✗", finished: "✓" };
const SHOWN_AT_FIRST = 200;

const jobsText = ({ counts }) => STATES.filter((state) => counts[state]).map((state) => `${number(counts[state])} ${state.toLowerCase()}`).join(", ");

const jobsOf = ({ counts }) => Object.values(counts).reduce((sum, one) => sum + one, 0);

const dateText = (seconds) => new Date(seconds * 1000).toLocaleString("sv").slice(0, 16);

const COLUMNS = [
  { name: "experiment", text: (run) => run.name, value: (run) => run.name },
  { name: "state", text: (run) => `${SYMBOLS[run.state]} ${run.state}`, value: (run) => Object.keys(SYMBOLS).indexOf(run.state) },
  { name: "jobs", rank: 2, falls: true, text: jobsText, value: jobsOf },
  { name: "last run", rank: 2, falls: true, text: (run) => dateText(run.noted), value: (run) => run.noted },
  { name: "run directory", rank: 2, text: (run) => run.root, value: (run) => run.root },
  { name: "supervisor", rank: 3, text: (run) => run.supervisor || "–", value: (run) => run.supervisor || null },
];

class RunRow extends TableRow {
  constructor(run) {
    super(run.id, COLUMNS);
    this.link = element("a", { href: `run/${run.id}` });
    this.message = element("span", { class: "message", hidden: "" });
    this.cells[0].append(this.link, this.message);
  }

  show(column, cell, text, run) {
    if (column.name === "experiment") this.link.textContent = text;
    else super.show(column, cell, text, run);
  }

  update(run, now, has) {
    super.update(run, now, has);
    const text = run.problem || (jobsOf(run) ? "" : "the robots are examined");
    this.message.textContent = text;
    this.message.title = text;
    this.message.hidden = !text;
  }
}

export class RunsTable extends SortedTable {
  constructor(store) {
    super("runs", store, { columns: COLUMNS, states: SYMBOLS, first: SHOWN_AT_FIRST, noun: "experiments", prefix: "run:" });
  }

  rowOf(run) { return new RunRow(run); }

  textOf(run) { return [run.name, run.state, run.root, run.problem].join(" "); }

  compareAlike(a, b) { return b.noted - a.noted || a.name.localeCompare(b.name, "en", { numeric: true }); }

  isShown(name, runs) { return name !== "supervisor" || runs.some((run) => run.supervisor); }
}

// What stands above the table.
export function drawTotals(runs) {
  const figures = [["running", number(runs.filter((run) => run.state === "running").length)], ["experiments", number(runs.length)]];
  document.getElementById("totals").replaceChildren(...figures.map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, value))));
}
