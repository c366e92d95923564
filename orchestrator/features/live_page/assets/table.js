// A table that is sorted by its headings, filtered by words and states, updated cell by cell, and used with the keyboard.

import { element } from "./charts.js";

const MORE = 500, SORT_EVERY_MS = 3000;

const classOf = (column) => [column.number ? "number" : "", column.phone ? "phone" : "", column.rank ? `rank${column.rank}` : ""].join(" ").trim() || null;

// The row of an item. `columns` are those of `SortedTable`. Its name is a link: the arrow keys go there.
export class TableRow {
  constructor(id, columns) {
    this.columns = columns;
    this.texts = [];
    this.cells = columns.map((column) => element("td", { class: classOf(column) }));
    this.tr = element("tr", { "data-id": id }, ...this.cells);
  }

  update(item, now, has) {
    this.columns.forEach((column, place) => {
      const text = column.text(item, now);
      if (this.texts[place] === text) return;
      this.texts[place] = text;
      this.show(column, this.cells[place], text, item);
    });
    for (const [place, shown] of has.entries()) this.cells[place].hidden = !shown;
  }

  show(column, cell, text, item) {
    cell.textContent = text;
    if (column.name === "state") cell.className = `state is-${item.state}${text.length > 24 ? " long" : ""}`;
  }
}

// The table `name` of the page, whose items have an `id` and a `state`; the names of their pieces begin with `prefix`.
// `columns`: `text` is what a cell says, and `value` what it is sorted by: numbers the largest first, others only if the column `falls`; the higher its rank, the wider the window that shows it.
// `states`: a symbol for each, in the order in which they are sorted. `first`: so many rows are shown at first.
export class SortedTable {
  constructor(name, store, { columns, states, first, noun, prefix }) {
    this.name = name;
    this.store = store;
    this.columns = columns;
    this.noun = noun;
    this.prefix = prefix;
    this.symbols = states;
    this.ordered = Object.keys(states);
    this.items = new Map();
    this.rows = new Map();
    this.order = [];
    this.sort = { column: this.placeOf("state"), down: false, isDefault: true };
    this.states = new Set();
    this.limit = first;
    this.sortedAt = 0;
    this.table = document.getElementById(name);
    this.body = this.table.tBodies[0];
    this.makeHead();
    this.filter = document.getElementById("filter");
    this.filter.addEventListener("input", () => this.arrange());
    document.getElementById(`more-${name}`).addEventListener("click", () => { this.limit += MORE; this.arrange(); });
    document.addEventListener("keydown", (event) => this.onKey(event));
  }

  // -- what the tables differ in

  // The item of a piece that the server has told.
  itemOf(id, piece) { return { ...piece, id }; }

  rowOf(item) { return new TableRow(item.id, this.columns); }

  // In which the words of the filter are looked for.
  textOf(item) { return item.id; }

  // Whether the column is shown where these are all items.
  isShown() { return true; }

  // The order of items that are alike.
  compareAlike(a, b) { return a.id.localeCompare(b.id, "en", { numeric: true }); }

  // -- what they have in common

  placeOf(name) { return this.columns.findIndex((column) => column.name === name); }

  makeHead() {
    const sorter = document.getElementById("sorter");
    this.heads = this.columns.map((column, place) => {
      const button = element("button", { type: "button" }, column.name);
      button.addEventListener("click", () => this.sortBy(place));
      sorter.append(element("option", { value: place }, column.name));
      return element("th", { scope: "col", class: classOf({ ...column, phone: false }) }, button);
    });
    sorter.value = String(this.sort.column);
    sorter.addEventListener("change", () => this.sortBy(Number(sorter.value)));
    this.table.tHead.rows[0].append(...this.heads);
  }

  sortBy(place) {
    const same = !this.sort.isDefault && this.sort.column === place;
    const { number, falls } = this.columns[place];
    this.sort = { column: place, down: same ? !this.sort.down : Boolean(falls || number), isDefault: false };
    this.heads.forEach((head, at) => {
      if (at === place) head.setAttribute("aria-sort", this.sort.down ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    });
    document.getElementById("sorter").value = String(place);
    this.arrange();
  }

  // Takes in the items among the pieces with these names; returns whether there are any at all.
  take(names) {
    for (const name of names) {
      if (!name.startsWith(this.prefix)) continue;
      const id = name.slice(this.prefix.length), piece = this.store.get(name);
      if (piece === undefined) {
        this.items.delete(id);
        this.rows.get(id)?.tr.remove();
        this.rows.delete(id);
      } else this.items.set(id, this.itemOf(id, piece));
    }
    this.arrange(Date.now() - this.sortedAt > SORT_EVERY_MS || this.order.length !== this.items.size);
    return this.items.size > 0;
  }

  matches(item, words) {
    if (this.states.size && !this.states.has(item.state)) return false;
    const text = this.textOf(item).toLowerCase();
    return words.every((word) => text.includes(word));
  }

  arrange(again = true) {
    const all = [...this.items.values()], now = this.store.now();
    if (again) {
      const { column, down } = this.sort, value = this.columns[column].value, sign = down ? -1 : 1;
      const compare = (a, b) => {
        const one = value(a, now), other = value(b, now);
        if (one === other) return this.compareAlike(a, b);
        if (one === null || one === undefined) return 1;
        if (other === null || other === undefined) return -1;
        return sign * (typeof one === "string" ? one.localeCompare(other, "en", { numeric: true }) : one - other);
      };
      this.order = all.sort(compare).map((item) => item.id);
      this.sortedAt = Date.now();
    }
    const words = this.filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    const fitting = this.order.filter((id) => this.items.has(id) && this.matches(this.items.get(id), words));
    this.shown = fitting.slice(0, this.limit);
    this.drawStates(all);
    this.draw(now);
    const left = fitting.length - this.shown.length;
    const more = document.getElementById(`more-${this.name}`);
    more.hidden = left <= 0;
    more.textContent = `Show ${Math.min(left, MORE).toLocaleString("en-US")} more`;
    const note = `${fitting.length.toLocaleString("en-US")} of ${all.length.toLocaleString("en-US")} ${this.noun}${left > 0 ? `, ${this.shown.length} shown` : ""}`;
    document.getElementById(`${this.name}-note`).textContent = fitting.length === all.length && left <= 0 ? "" : note;
  }

  draw(now) {
    const all = [...this.items.values()];
    const has = this.columns.map(({ name }) => this.isShown(name, all));
    this.heads.forEach((head, place) => { head.hidden = !has[place]; });
    const focused = this.body.contains(document.activeElement) ? document.activeElement : null;
    let at = this.body.firstElementChild;
    for (const id of this.shown) {
      const item = this.items.get(id);
      let row = this.rows.get(id);
      if (row === undefined) this.rows.set(id, row = this.rowOf(item));
      row.update(item, now, has);
      if (row.tr === at) at = at.nextElementSibling;
      else this.body.insertBefore(row.tr, at);
    }
    while (at) { const next = at.nextElementSibling; at.remove(); at = next; }
    if (focused !== document.activeElement) focused?.focus({ preventScroll: true });
  }

  drawStates(all) {
    const box = document.getElementById("states");
    const counts = Object.fromEntries(this.ordered.map((state) => [state, all.filter((item) => item.state === state).length]));
    const wanted = this.ordered.filter((state) => counts[state] || this.states.has(state));
    const key = wanted.map((state) => `${state}${counts[state]}${this.states.has(state)}`).join();
    if (key === this.statesKey) return;
    this.statesKey = key;
    const focused = document.activeElement?.dataset?.state;
    box.replaceChildren(...wanted.map((state) => {
      const pressed = this.states.has(state);
      const button = element("button", { type: "button", class: `is-${state}`, "data-state": state, "aria-pressed": String(pressed) }, `${this.symbols[state]} ${counts[state].toLocaleString("en-US")} ${state.toLowerCase()}`);
      button.addEventListener("click", () => {
        if (pressed) this.states.delete(state);
        else this.states.add(state);
        this.arrange();
      });
      return button;
    }));
    if (focused) box.querySelector(`[data-state="${focused}"]`)?.focus();
  }

  onKey(event) {
    const typing = event.target.matches?.("input, textarea, select");
    if (event.key === "/" && !typing) { event.preventDefault(); this.filter.focus(); return; }
    if (event.key === "Escape" && event.target === this.filter) { this.filter.value = ""; this.arrange(); this.filter.blur(); return; }
    if (!["ArrowDown", "ArrowUp"].includes(event.key) || (typing && event.target !== this.filter) || document.querySelector("dialog[open]")) return;
    const names = [...this.body.rows].map((row) => row.querySelector("a"));
    const at = names.indexOf(document.activeElement);
    if (at < 0 && event.target !== this.filter) return;
    event.preventDefault();
    names[Math.max(0, at + (event.key === "ArrowDown" ? 1 : -1))]?.focus();
  }
}
