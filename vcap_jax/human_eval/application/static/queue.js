// Answers on their way: each is kept in this browser until the server says that it is on disk. They go one after the
// other, the oldest first. One that is sent twice, as by two tabs, is done once: the server knows its name.

const WAITS = [500, 1000, 2000, 4000, 8000];
const REFUSED = [409, 422]; // by the protocol, or because it was changed elsewhere
const SHUT = [401, 403, 421]; // whoever asks is not let in, or the server goes by another name

export class Queue {
  // who: whose answers, to which study. send(entry): a promise of the Response. told(event, entry, detail): "stored", "refused",
  // "waiting", "shut", "empty".
  constructor(who, send, told) {
    this.prefix = `vcap-answers:${who}:`;
    this.send = send;
    this.told = told;
    this.count = 0;
    this.tries = 0;
    this.memory = new Map(); // where the browser keeps nothing
    this.running = null;
    addEventListener("online", () => this.hurry());
  }

  keys() {
    const kept = [];
    for (let i = 0; i < localStorage.length; i++) {
      const key = localStorage.key(i);
      if (key.startsWith(this.prefix)) kept.push(key);
    }
    return [...kept, ...this.memory.keys()].sort();
  }

  get size() {
    return this.keys().length;
  }

  add(entry) {
    // After all that waits, also where the clock has been set back meanwhile.
    const last = Number(this.keys().at(-1)?.slice(this.prefix.length).split("-")[0] ?? 0);
    const time = String(Math.max(Date.now(), last + 1)).padStart(15, "0");
    const key = `${this.prefix}${time}-${String(this.count++).padStart(6, "0")}-${entry.request}`;
    const text = JSON.stringify(entry);
    try {
      localStorage.setItem(key, text);
    } catch {
      this.memory.set(key, text); // full: it is at least sent, and leaving the page warns
    }
    return this.pump();
  }

  hurry() {
    this.wake?.();
    return this.pump();
  }

  // Resolves when nothing waits any more, or when the server lets nobody in.
  pump() {
    this.running ??= this.work().finally(() => (this.running = null));
    return this.running;
  }

  async work() {
    for (let key = this.keys()[0]; key; key = this.keys()[0]) {
      const text = this.memory.get(key) ?? localStorage.getItem(key);
      if (text === null) continue; // another tab was quicker
      const entry = JSON.parse(text);
      let answer = null;
      let detail = null;
      try {
        answer = await this.send(entry);
        // The study says in JSON what it has stored or will never take. Other pages, as a gateway's to sign in again,
        // say neither.
        if (answer.ok || REFUSED.includes(answer.status)) detail = await answer.json();
      } catch {
        // No connection, or no JSON: below.
      }
      if (SHUT.includes(answer?.status)) {
        this.tries = 0;
        this.told("shut", entry, await answer.text());
        return;
      }
      if (detail === null) {
        this.told("waiting", entry, this.size);
        await this.pause(WAITS[Math.min(this.tries++, WAITS.length - 1)]);
        continue;
      }
      this.tries = 0;
      localStorage.removeItem(key);
      this.memory.delete(key);
      this.told(answer.ok ? "stored" : "refused", entry, detail);
    }
    this.told("empty");
  }

  pause(milliseconds) {
    return new Promise((resolve) => {
      const timer = setTimeout(resolve, milliseconds);
      this.wake = () => {
        clearTimeout(timer);
        resolve();
      };
    });
  }
}
