// The page on which an annotator works. Texts of a study go into the page as text, never as markup.
import { Queue } from "./queue.js";
import { Viewer } from "./viewer.js";

const CONSISTENT = "1. consistent";
const UNDECIDABLE = "3. undecidable";
const HOLDING = "2. holding";
const STEP1 = [CONSISTENT, "2. inconsistent", UNDECIDABLE];
const STEP2 = ["1. not holding", HOLDING, "3. ambiguous"];
const RANKINGS = ["accuracy", "completeness", "granularity"];
const NOTHING = { step1: null, step2: null, note: "", version: 0 };

const $ = (id) => document.getElementById(id);
const { person, study } = document.body.dataset;
// What this browser keeps is of this study: another one may be served at the same address later.
const home = `${study}:${person}`;
const viewer = new Viewer($("stage"), { seek: $("seek"), time: $("time"), video: $("video-tools") });
const queue = new Queue(home, send, told);

let me = null; // all items of this annotator
let item = null; // the one that is shown, as the server gave it, kept up to date here
let place = 0; // of the statement that is shown; past the last one stand the rankings
let ranking = 0; // the one that letters go to
let orders = {}; // rankings in work: letters, the best first
let again = false; // step 1 is asked again

// -- talking to the server ----------------------------------------------------------------------------------

function send(entry) {
  return fetch(`/api/item/${entry.item}/${entry.op}`, {
    method: "POST",
    headers: { "Content-Type": "application/json", "X-Annotator": person },
    body: JSON.stringify(entry),
  });
}

async function get(address) {
  const answer = await fetch(address, { headers: { "X-Annotator": person } });
  if (!answer.ok) throw new Error(await answer.text());
  return answer.json();
}

function told(event, entry, detail) {
  const saved = $("saved");
  saved.dataset.state = event;
  if (event === "waiting") {
    saved.textContent = `no connection: ${detail} answer${detail === 1 ? "" : "s"} kept in this browser`;
  } else if (event === "shut") {
    alarm(`${detail} Your ${queue.size} answers wait in this browser.`);
    saved.textContent = "not saved";
  } else if (event === "refused") {
    alarm(`Not stored: ${detail.error}`);
    if (item && entry.item === item.key) open(item.key);
  } else if (event === "empty") {
    saved.textContent = "saved";
  } else if (event === "stored") {
    saved.textContent = queue.size ? "saving" : "saved";
    if (entry.op === "finish") after(entry.item);
  }
}

function alarm(text) {
  $("alert").textContent = text;
  $("alert").hidden = !text;
}

function post(op, content) {
  $("saved").textContent = "saving";
  $("saved").dataset.state = "saving";
  return queue.add({ op, item: item.key, request: name(), ...content });
}

function name() {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

// -- items --------------------------------------------------------------------------------------------------

async function start() {
  try {
    await queue.pump(); // what an earlier page left behind comes first
    me = await get("/api/me");
  } catch (error) {
    alarm(`The study cannot be loaded: ${error.message}. Reload the page.`);
    return;
  }
  if (!queue.size) $("saved").textContent = "saved";
  if (!me.items.length) {
    alarm("There are no items for you in this study.");
    return;
  }
  const wanted = me.items.find((one) => `#${one.key}` === location.hash);
  await open((wanted ?? next(-1) ?? me.items[0]).key);
}

// The first unfinished item after a place, from the beginning again at the end.
function next(from) {
  const order = [...me.items.slice(from + 1), ...me.items.slice(0, from + 1)];
  return order.find((one) => !one.finished);
}

async function open(key) {
  let got;
  try {
    got = await get(`/api/item/${key}`);
  } catch (error) {
    alarm(`This item cannot be loaded (${error.message}). Try again when the connection is back.`);
    return;
  }
  const same = item?.key === key;
  item = got;
  if (!same) {
    history.replaceState(null, "", `#${key}`);
    alarm("");
    viewer.show(item.media);
    orders = JSON.parse(localStorage.getItem(draft()) ?? "{}");
    ranking = 0;
    again = false;
    const open = item.propositions.findIndex((one) => !complete(one));
    place = item.finished ? 0 : open < 0 ? item.propositions.length : open;
    drawCaptions();
  }
  if (item.finished) orders = item.rankings;
  draw();
}

const draft = (key = item.key) => `vcap-ranking:${home}:${key}`;

async function after(key) {
  localStorage.removeItem(draft(key));
  try {
    me = await get("/api/me");
  } catch {
    return; // the next item is loaded when there is a connection
  }
  if (item.key !== key) return;
  const following = next(me.items.findIndex((one) => one.key === key));
  if (following) await open(following.key);
  else {
    await open(key);
    alarm("Everything is finished. Thank you!");
  }
}

function neighbour(step) {
  const at = me.items.findIndex((one) => one.key === item.key) + step;
  if (me.items[at]) open(me.items[at].key);
}

// -- answers ------------------------------------------------------------------------------------------------

const verdict = (one) => item.verdicts[one.key] ?? NOTHING;
const complete = (one) => {
  const { step1, step2 } = verdict(one);
  return step1 !== null && (step1 !== CONSISTENT || step2 !== null);
};
const current = () => item.propositions[place];
const subjective = (note) => note.trim().toLowerCase() === "subjective";

function decide(change) {
  const one = current();
  if (!one || item.finished) return;
  const before = verdict(one);
  const said = { step1: before.step1, step2: before.step2, note: before.note, ...change };
  if (said.step1 !== CONSISTENT) said.step2 = null;
  if (said.step1 === before.step1 && said.step2 === before.step2 && said.note === before.note) {
    again = false;
    if (complete(one) && "step1" in change) forward();
    draw();
    return;
  }
  item.verdicts[one.key] = { ...said, version: before.version + 1 };
  item.changes.push({ prop: one.key, step1: before.step1, step2: before.step2, note: before.note });
  again = false;
  post("answer", { prop: one.key, ...said, version: before.version });
  // A note alone, which may have more to come, leaves the statement where it is.
  if (complete(one) && ("step1" in change || "step2" in change)) forward();
  draw();
}

function step1(label) {
  const before = verdict(current());
  const note = subjective(before.note) && label !== UNDECIDABLE ? "" : before.note;
  decide({ step1: label, step2: label === before.step1 ? before.step2 : null, note });
}

function note(text) {
  decide(subjective(text) ? { step1: UNDECIDABLE, note: text } : { note: text });
}

// To the next statement that is open, or on to the rankings when there is none.
function forward() {
  const count = item.propositions.length;
  for (let i = 1; i <= count; i++) {
    const at = (place + i) % count;
    if (!complete(item.propositions[at])) {
      place = at;
      return;
    }
  }
  place = count;
}

function undo() {
  if (item.finished || !item.changes.length) return;
  const { prop, ...before } = item.changes.pop();
  const version = (item.verdicts[prop] ?? NOTHING).version;
  item.verdicts[prop] = { ...before, version: version + 1 };
  place = item.propositions.findIndex((one) => one.key === prop);
  again = false;
  post("undo", { prop, version });
  draw();
}

function go(to) {
  const done = item.propositions.every(complete);
  place = Math.max(0, Math.min(to, item.propositions.length - (done || item.finished ? 0 : 1)));
  again = false;
  draw();
}

// -- rankings -----------------------------------------------------------------------------------------------

const order = (which) => (orders[which] ??= []);
const ranked = () => RANKINGS.every((which) => order(which).length === item.captions.length);

function rank(which, letter) {
  if (item.finished || !item.captions.some((one) => one.letter === letter)) return;
  const at = order(which).indexOf(letter);
  if (at < 0) order(which).push(letter);
  else order(which).splice(at, 1);
  if (order(which).length === item.captions.length) {
    const open = RANKINGS.findIndex((one) => order(one).length < item.captions.length);
    if (open >= 0) ranking = open;
  } else ranking = RANKINGS.indexOf(which);
  keepOrders();
}

function keepOrders() {
  try {
    localStorage.setItem(draft(), JSON.stringify(orders));
  } catch {
    // Full: the rankings are in this page alone until the item is finished.
  }
  draw();
}

function shift(which, letter, by) {
  const list = order(which);
  const at = list.indexOf(letter);
  if (item.finished || !list[at + by]) return;
  [list[at], list[at + by]] = [list[at + by], list[at]];
  keepOrders();
}

function finish() {
  if (item.finished || !ranked() || !item.propositions.every(complete)) return;
  item.finished = "on its way";
  post("finish", { rankings: orders });
  draw();
}

// -- drawing ------------------------------------------------------------------------------------------------

function element(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

function drawCaptions() {
  $("captions").replaceChildren(
    ...item.captions.map((caption) => {
      const head = element("h3", {}, element("span", { className: "letter", textContent: caption.letter }), " Caption");
      const text = element("p", { className: "caption", textContent: caption.text });
      const made = element("article", { className: "card", tabIndex: -1 }, head, text);
      made.dataset.letter = caption.letter;
      made.setAttribute("aria-label", `Caption ${caption.letter}`);
      return made;
    }),
  );
}

// Marks what a statement rests on. Offsets count code points, of which some are two units of a string here.
function highlight(one) {
  for (const article of $("captions").children) {
    const { letter } = article.dataset;
    const { text } = item.captions.find((caption) => caption.letter === letter);
    const shown = article.querySelector(".caption");
    article.classList.toggle("active", one?.letter === letter);
    if (one?.letter === letter && one.span) {
      const points = Array.from(text);
      const [start, end] = one.span;
      const mark = element("mark", { textContent: points.slice(start, end).join("") });
      shown.replaceChildren(points.slice(0, start).join(""), mark, points.slice(end).join(""));
    } else shown.textContent = text;
  }
  if (one) bring(one.letter);
}

function bring(letter) {
  const article = $("captions").querySelector(`[data-letter="${letter}"]`);
  if (!article) return;
  const box = $("captions");
  const target = article.querySelector("mark") ?? article;
  const from = target.getBoundingClientRect().top - box.getBoundingClientRect().top + box.scrollTop;
  const top = article.getBoundingClientRect().top - box.getBoundingClientRect().top + box.scrollTop;
  // The caption from its beginning, unless the mark would then be out of sight.
  box.scrollTop = from - top > box.clientHeight - 60 ? from - box.clientHeight / 2 : top - 4;
}

function draw() {
  const at = me.items.findIndex((one) => one.key === item.key);
  const decided = item.propositions.filter(complete).length;
  Object.assign(me.items[at], { decided, finished: Boolean(item.finished) });
  const done = me.items.reduce((sum, one) => sum + one.decided + (one.finished ? 1 : 0), 0);
  const all = me.items.reduce((sum, one) => sum + one.total + 1, 0);
  $("where").textContent = `Item ${at + 1} of ${me.items.length}${item.finished ? ", finished" : ""}`;
  $("progress").value = all ? done / all : 0;
  $("left").textContent = me.left_s === null || done === all ? "" : `about ${hours(me.left_s)} left`;
  $("previous-item").disabled = at === 0;
  $("next-item").disabled = at === me.items.length - 1;
  const inRankings = place >= item.propositions.length;
  $("statement-card").hidden = inRankings;
  $("ranking-card").hidden = !inRankings;
  if (inRankings) drawRankings();
  else drawStatement();
}

function hours(seconds) {
  const minutes = Math.ceil(seconds / 60);
  return minutes < 90 ? `${minutes} min` : `${(minutes / 60).toFixed(1)} h`;
}

function drawStatement() {
  const one = current();
  const { step1, step2, note } = verdict(one);
  $("statement-place").textContent = `Statement ${place + 1} of ${item.propositions.length}, about caption ${one.letter}`;
  $("statement-kind").textContent = one.kind;
  $("statement-kind").className = `tag ${one.kind}`;
  $("statement").textContent = one.text;
  $("step2-letter").textContent = one.letter;
  const locked = Boolean(item.finished);
  $("step1").disabled = locked;
  $("step2").disabled = locked || step1 !== CONSISTENT;
  for (const button of document.querySelectorAll("[data-step1]")) {
    const label = button.dataset.step1;
    const chosen = label === "subjective" ? subjective(note) : label === step1 && !(label === UNDECIDABLE && subjective(note));
    button.setAttribute("aria-pressed", chosen);
  }
  for (const button of document.querySelectorAll("[data-step2]"))
    button.setAttribute("aria-pressed", button.dataset.step2 === step2);
  $("step1").classList.toggle("asked", !locked && (step1 !== CONSISTENT || again));
  $("step2").classList.toggle("asked", !locked && step1 === CONSISTENT && !again);
  $("captions").classList.toggle("later", !locked && (step1 === null || again));
  if (document.activeElement !== $("note")) $("note").value = note;
  $("note").disabled = locked;
  $("undo").disabled = locked || !item.changes.length;
  $("previous").disabled = place === 0;
  $("next").disabled = place === item.propositions.length - 1 && !item.propositions.every(complete) && !locked;
  drawDots();
  highlight(one);
}

function drawDots() {
  $("dots").replaceChildren(
    ...item.propositions.map((one, index) => {
      const state = complete(one) ? (verdict(one).step2 === HOLDING ? "holding" : "done") : verdict(one).step1 ? "half" : "open";
      const dot = element("button", { type: "button", className: state, title: `${one.letter}: ${one.text}` });
      dot.setAttribute("aria-label", `Statement ${index + 1}, caption ${one.letter}, ${state}`);
      if (index === place) dot.setAttribute("aria-current", "step");
      if (index && item.propositions[index - 1].letter !== one.letter) dot.classList.add("new-caption");
      dot.addEventListener("click", () => go(index));
      return dot;
    }),
  );
  const shown = $("dots").children[place];
  $("dots").scrollTop = shown.offsetTop - $("dots").offsetTop - 24;
}

function drawRankings() {
  $("captions").classList.remove("later");
  highlight(null);
  const counts = Object.fromEntries(item.captions.map((one) => [one.letter, { missing: 0, inconsistent: 0 }]));
  for (const one of item.propositions) if (verdict(one).step2 === HOLDING) counts[one.letter][one.kind]++;
  document.querySelectorAll(".ranking").forEach((box, index) => {
    const which = box.dataset.ranking;
    const list = order(which);
    box.classList.toggle("asked", index === ranking && !item.finished);
    const hint = (letter) => {
      const { missing, inconsistent } = counts[letter];
      if (which === "accuracy") return `${inconsistent} wrong`;
      return which === "completeness" ? `${missing} missing` : "";
    };
    box.querySelector(".order").replaceChildren(
      ...list.map((letter, at) => {
        const chip = element("button", { type: "button", className: "chip", disabled: Boolean(item.finished) });
        chip.append(element("b", { textContent: letter }), element("small", { textContent: hint(letter) }));
        chip.setAttribute("aria-label", `${letter} is number ${at + 1} by ${which}; take it out`);
        chip.addEventListener("click", () => rank(which, letter));
        const arrows = [-1, 1].map((by) => {
          const arrow = element("button", { type: "button", className: "arrow", textContent: by < 0 ? "‹" : "›" });
          arrow.disabled = Boolean(item.finished) || !list[at + by];
          arrow.setAttribute("aria-label", `Move ${letter} ${by < 0 ? "up" : "down"}`);
          arrow.addEventListener("click", () => shift(which, letter, by));
          return arrow;
        });
        return element("li", {}, arrows[0], chip, arrows[1]);
      }),
    );
    box.querySelector(".pool").replaceChildren(
      ...item.captions
        .filter((one) => !list.includes(one.letter))
        .map(({ letter }) => {
          const chip = element("button", { type: "button", className: "chip" });
          chip.append(element("b", { textContent: letter }), element("small", { textContent: hint(letter) }));
          chip.setAttribute("aria-label", `Place ${letter} as number ${list.length + 1} by ${which}`);
          chip.addEventListener("click", () => rank(which, letter));
          return chip;
        }),
    );
  });
  $("finish").hidden = $("undo-ranking").hidden = Boolean(item.finished);
  $("finish").disabled = !ranked();
  $("undo-ranking").disabled = !item.changes.length;
  $("finish-hint").textContent = item.finished
    ? "This item is finished and final."
    : "Rankings are final: afterwards nothing of this item can be changed.";
}

// -- keys and buttons ---------------------------------------------------------------------------------------

// The letter or digit of a key as it is printed on a Latin keyboard, also where another layout is active.
function keyName(event) {
  if (/^[ -~]$/.test(event.key) && !(/^Digit/.test(event.code) && !/[0-9]/.test(event.key) && !event.shiftKey))
    return event.key.toLowerCase();
  const code = /^(?:Key|Digit|Numpad)([A-Z0-9])$/.exec(event.code);
  return code ? code[1].toLowerCase() : event.key;
}

function answerKey(number) {
  if (item.finished || place >= item.propositions.length) return;
  if (verdict(current()).step1 === CONSISTENT && !again) decide({ step2: STEP2[number] });
  else step1(STEP1[number]);
}

function help(show) {
  if (show) $("help").showModal();
  else $("help").close();
}

const inRankings = () => place >= item.propositions.length;
const KEYS = {
  1: () => answerKey(0),
  2: () => answerKey(1),
  3: () => answerKey(2),
  s: () => inRankings() || note("subjective"),
  u: undo,
  r: () => {
    again = !item.finished && !inRankings();
    draw();
  },
  n: () => {
    if (inRankings()) ranking = (ranking + 1) % RANKINGS.length;
    else place++;
    go(place);
  },
  p: () => go(Math.min(place, item.propositions.length) - 1),
  m: () => inRankings() || $("note").focus(),
  i: () => help(true),
  "?": () => help(true),
  x: () => neighbour(-1),
  y: () => neighbour(1),
  "+": () => viewer.act("in"),
  "=": () => viewer.act("in"),
  "-": () => viewer.act("out"),
  0: () => viewer.act("fit"),
  k: () => viewer.act("play"),
  ",": () => viewer.act("frame-back"),
  ".": () => viewer.act("frame-on"),
  "[": () => viewer.act("jump-back"),
  "]": () => viewer.act("jump-on"),
  Backspace: () => {
    if (!inRankings() || item.finished) return;
    if (!order(RANKINGS[ranking]).length && ranking > 0) ranking--;
    order(RANKINGS[ranking]).pop();
    keepOrders();
  },
  Enter: () => inRankings() && finish(),
};

document.addEventListener("keydown", (event) => {
  if (!item || $("help").open || event.ctrlKey || event.altKey || event.metaKey || event.isComposing) return;
  const target = event.target;
  if (target === $("note")) {
    if (event.key === "Enter" || event.key === "Escape") target.blur();
    return;
  }
  if (target.matches("input, select, textarea")) return;
  const key = keyName(event);
  // Enter on a button or a link is that button's.
  if (key === "Enter" && target.matches("button, a, summary")) return;
  let act = KEYS[key];
  if (/^[a-h]$/.test(key)) {
    const letter = key.toUpperCase();
    act = () => (inRankings() ? event.repeat || rank(RANKINGS[ranking], letter) : bring(letter));
  }
  if (!act) return;
  event.preventDefault();
  const steady = /^[123srum]$/.test(key) || key === "Enter";
  if (event.repeat && steady) return; // a key that is held down answers once
  act();
});

for (const button of document.querySelectorAll("[data-step1]")) {
  const label = button.dataset.step1;
  button.addEventListener("click", () => (label === "subjective" ? note("subjective") : step1(label)));
}
for (const button of document.querySelectorAll("[data-step2]"))
  button.addEventListener("click", () => decide({ step2: button.dataset.step2 }));
for (const button of document.querySelectorAll("[data-view]"))
  button.addEventListener("click", () => viewer.act(button.dataset.view));
document.querySelectorAll(".ranking").forEach((box, index) =>
  box.addEventListener("focusin", () => (ranking = index)),
);
$("note").addEventListener("change", () => note($("note").value));
$("undo").addEventListener("click", undo);
$("undo-ranking").addEventListener("click", undo);
$("previous").addEventListener("click", () => go(place - 1));
$("next").addEventListener("click", () => go(place + 1));
$("back-to-statements").addEventListener("click", () => go(item.propositions.length - 1));
$("previous-item").addEventListener("click", () => neighbour(-1));
$("next-item").addEventListener("click", () => neighbour(1));
$("finish").addEventListener("click", finish);
$("show-help").addEventListener("click", () => help(true));
$("close-help").addEventListener("click", () => help(false));
addEventListener("beforeunload", (event) => {
  // Only what the browser would not keep is worth a question.
  if (queue.memory.size) event.preventDefault();
});

start();
