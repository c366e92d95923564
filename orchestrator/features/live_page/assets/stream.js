// The connection to the server: events as they come, and what the server has told so far.

const QUIET_MS = 40_000, HIDDEN_MS = 10_000, LONGEST_PAUSE_MS = 8_000;

// Where the server is: behind a proxy that may be a path of its own.
const root = new URL("..", import.meta.url).href;
const absolute = (path) => new URL(path, root).href;
const KEY = `orchestrator-token ${root}`;

function tokenOfAddress() {
  const given = /^#token=([!-~]+)$/.exec(location.hash);
  if (given) {
    sessionStorage.setItem(KEY, given[1]);
    history.replaceState(null, "", location.pathname + location.search);
  }
  return sessionStorage.getItem(KEY);
}

const token = tokenOfAddress();
export const hasToken = token !== null;
export const needsToken = document.body.dataset.token === "1";
const headers = token ? { "X-Orchestrator-Token": token } : {};

export async function json(path) {
  const answer = await fetch(absolute(path), { headers });
  if (!answer.ok) throw new Error(`${answer.status} ${(await answer.text()).trim()}`);
  return answer.json();
}

// Pictures and videos cannot be asked for with a token, except by a request of our own. What that has fetched is kept
// until a picture is drawn, or until `freeSources` is called for a video, which is read while it is played.
async function fetchSource(element, path) {
  const answer = await fetch(absolute(path), { headers });
  if (!answer.ok) return;
  element.src = URL.createObjectURL(await answer.blob());
  if (element.localName === "img") element.onload = element.onerror = () => URL.revokeObjectURL(element.src);
  else if (!element.isConnected) URL.revokeObjectURL(element.src);
}

// Lazy pictures are fetched when they come near to what is shown.
const awaited = new WeakMap();
const nearing = new IntersectionObserver((entries) => {
  for (const { target } of entries.filter((one) => one.isIntersecting)) {
    nearing.unobserve(target);
    fetchSource(target, awaited.get(target));
  }
}, { rootMargin: "400px" });

export function setSource(element, path) {
  if (!needsToken) element.src = absolute(path);
  else if (element.loading === "lazy") {
    awaited.set(element, path);
    nearing.unobserve(element);
    nearing.observe(element);
  } else fetchSource(element, path);
}

export function freeSources(box) {
  for (const video of box?.querySelectorAll("video") ?? []) URL.revokeObjectURL(video.src);
}

// Calls `onEvent(name, data)` for each server-sent event of the address that `pathOf` gives at each connection, and connects again for as long as the page is visible.
// `onState` is told "open" or the reason why there is no connection. Returns a function that ends it.
export function follow(pathOf, onEvent, onState = () => {}) {
  let ended = false, abort = null, pause = 500, hiding = 0, wake = () => {};

  async function connectOnce() {
    abort = new AbortController();
    let alarm = 0;
    const heard = () => { clearTimeout(alarm); alarm = setTimeout(() => abort.abort(), QUIET_MS); };
    try {
      heard();
      const answer = await fetch(absolute(pathOf()), { headers, signal: abort.signal, cache: "no-store" });
      if (!answer.ok) return `${answer.status}: ${(await answer.text()).trim()}`;
      onState("open");
      pause = 500;
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      let left = "";
      for (;;) {
        const { value, done } = await reader.read();
        if (done) return "the stream has ended";
        heard();
        left += value;
        let end;
        while ((end = left.indexOf("\n\n")) >= 0) {
          const lines = left.slice(0, end).split("\n");
          left = left.slice(end + 2);
          const name = lines.find((line) => line.startsWith("event: "))?.slice(7) ?? "message";
          const data = lines.filter((line) => line.startsWith("data: ")).map((line) => line.slice(6)).join("\n");
          if (data) onEvent(name, JSON.parse(data));
        }
      }
    } catch {
      return "no connection";
    } finally {
      clearTimeout(alarm);
    }
  }

  const onVisible = () => {
    clearTimeout(hiding);
    if (document.hidden) hiding = setTimeout(() => abort?.abort(), HIDDEN_MS);
    else wake();
  };

  async function run() {
    document.addEventListener("visibilitychange", onVisible);
    if (document.hidden) onVisible();  // opened in the background
    while (!ended) {
      const why = await connectOnce();
      if (ended) break;
      onState(why);
      await new Promise((resolve) => {
        wake = resolve;
        if (!document.hidden) setTimeout(resolve, pause);
      });
      pause = Math.min(LONGEST_PAUSE_MS, pause * 2);
    }
    document.removeEventListener("visibilitychange", onVisible);
  }

  run();
  return () => { ended = true; abort?.abort(); wake(); };
}

// What the server has told: pieces by name, and lists that grow. `onChange(names)` is called once per message.
export class Store {
  constructor(onChange) {
    this.pieces = new Map();
    this.lists = new Map();
    this.onChange = onChange;
    this.clockOffset = 0;
    this.isFresh = true;
    this.board = "";
    this.version = 0;
  }

  // Takes in what has come with the page.
  begin({ clock, state }) { this.take("clock", clock); this.take("message", state); }

  // The address of the stream that goes on after what there is here.
  onwards(path) { return this.version ? `${path}?board=${this.board}&version=${this.version}` : path; }

  get(name) { return this.pieces.get(name); }

  now() { return Date.now() / 1000 + this.clockOffset; }

  take(name, data) {
    if (name === "clock") {
      this.clockOffset = data.now - Date.now() / 1000;
      this.board = data.board;
      this.version = 0;
      this.isFresh = true;  // another run directory, or another server: everything comes once more
      return;
    }
    const changed = new Set();
    if (this.isFresh) {
      for (const known of [...this.pieces.keys(), ...this.lists.keys()]) changed.add(known);
      this.pieces.clear();
      this.lists.clear();
      this.isFresh = false;
    }
    this.version = data.version;
    for (const gone of data.drop ?? []) { this.pieces.delete(gone); this.lists.delete(gone); changed.add(gone); }
    for (const anew of data.restart ?? []) { this.lists.set(anew, []); changed.add(anew); }
    for (const [key, value] of Object.entries(data.put)) { this.pieces.set(key, value); changed.add(key); }
    for (const [key, items] of Object.entries(data.grow)) {
      const list = this.lists.get(key) ?? [];
      for (const item of items) list.push(item);
      this.lists.set(key, list);
      changed.add(key);
    }
    this.onChange(changed);
  }
}
