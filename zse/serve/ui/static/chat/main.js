// The playground: a list of conversations, and the branch of one of them that is shown.
import * as api from "./api.js";
import * as settings from "./settings.js";
import { Tree } from "./tree.js";
import { show } from "./view.js";

const place = (id) => document.getElementById(id);
const log = place("log");
let conversation = null, tree = new Tree([]), writing = null, leave = () => {};
let kept = Promise.resolve(); // settings, one change after the other: the last one stays, and answers go by it

const acts = {
  step: (message, by) => { tree.step(message, by); draw(); },
  again: (message) => guarded(() => answer(message.parent)),
  edit: (message, text) => guarded(() => say(text, message.parent)),
  redraw: () => draw(),
};

async function guarded(work) {
  try { await work(); } catch (error) { zse.notify(error.message); }
}

function draw() {
  log.replaceChildren(...tree.branch().map((message) => show(message, tree.siblings(message), acts)));
  place("stop").hidden = writing === null;
  place("send").disabled = writing !== null;
  place("title").textContent = conversation?.title || "Playground";
  place("acts").hidden = conversation === null;
  place("hint").hidden = tree.branch().length > 0;
  for (const format of ["json", "markdown"]) {
    const link = place(`export-${format}`);
    if (conversation) link.href = api.exportAddress(conversation.id, format); else link.removeAttribute("href");
  }
}

/** Read on an answer that is being written. */
function follow(message) {
  writing = message;
  let isDue = false;
  const stopReading = api.follow(conversation.id, message, () => {
    if (isDue) return;
    isDue = true;
    setTimeout(() => { isDue = false; grown(message); }, 50);
  });
  leave = () => { stopReading(); writing = null; };
}

function grown(message) {
  const isAtEnd = innerHeight + scrollY > document.body.scrollHeight - 80;
  log.querySelector(`[data-id="${message.id}"]`)?.refresh();
  if (message.status !== "writing" && writing === message) {
    writing = null;
    place("stop").hidden = true;
    place("send").disabled = false;
    zse.announce("The answer is complete.");
  }
  if (isAtEnd) scrollTo(0, document.body.scrollHeight);
}

async function answer(parent) {
  if (writing) throw new Error("An answer is being written; stop it first.");
  await kept;
  zse.announce("");
  const message = await api.answer(conversation.id, parent);
  tree.add(message);
  follow(message);
  draw();
  scrollTo(0, document.body.scrollHeight);
}

async function say(text, parent) {
  if (!text.trim()) return;
  if (writing) throw new Error("An answer is being written; stop it first.");
  if (!conversation) await begin(text);
  const message = await api.add(conversation.id, { role: "user", content: text, parent });
  tree.add(message);
  draw();
  await answer(message.id);
}

async function begin(text) {
  conversation = await api.create({ title: text.trim().split("\n")[0].slice(0, 60), ...settings.read() });
  history.replaceState(null, "", `?c=${conversation.id}`);
  await fillList();
}

async function open(id) {
  leave();
  const [found, messages] = await Promise.all([api.get(id), api.messages(id)]);
  conversation = found;
  tree = new Tree(messages);
  settings.write(conversation);
  history.replaceState(null, "", `?c=${id}`);
  const growing = tree.branch().find((message) => message.status === "writing");
  if (growing) follow(growing);
  if (isPhone()) place("shelf").open = false;
  draw();
  mark();
  scrollTo(0, document.body.scrollHeight);
}

function close() {
  leave();
  conversation = null;
  tree = new Tree([]);
  history.replaceState(null, "", location.pathname);
  draw();
  mark();
  place("text").focus();
}

const isPhone = () => innerWidth <= 700;
let asked = 0;

/** Show the conversations that are looked for; answers may come in another order than questions. */
async function fillList() {
  const query = place("search").value, number = ++asked;
  const all = await api.list(query);
  if (number !== asked) return;
  place("none").textContent = all.length ? "" : query ? "None has these words." : "None yet.";
  place("list").replaceChildren(...all.map((one) => {
    const line = document.createElement("li"), button = document.createElement("button");
    button.type = "button";
    button.dataset.id = one.id;
    button.textContent = button.title = one.title || "Untitled";
    button.addEventListener("click", () => guarded(() => open(one.id)));
    line.append(button);
    return line;
  }));
  mark();
}

function mark() {
  for (const button of place("list").querySelectorAll("button")) {
    if (button.dataset.id === conversation?.id) button.setAttribute("aria-current", "true");
    else button.removeAttribute("aria-current");
  }
}

/** The title becomes a field; Enter or leaving it keeps what is written, Escape what was there. */
function rename() {
  const title = place("title"), field = document.createElement("input");
  field.value = conversation.title;
  field.maxLength = 200;
  field.setAttribute("aria-label", "Title");
  title.replaceChildren(field);
  field.focus();
  field.addEventListener("keydown", (event) => {
    if (event.key === "Escape") field.value = conversation.title;
    if (event.key === "Escape" || event.key === "Enter") field.blur();
  });
  field.addEventListener("blur", () => guarded(async () => {
    conversation = await api.change(conversation.id, { title: field.value });
    draw();
    await fillList();
  }), { once: true });
}

async function remove(button) {
  if (!button.dataset.sure) {
    button.dataset.sure = "1";
    button.textContent = "Delete for good?";
    setTimeout(() => { delete button.dataset.sure; button.textContent = "Delete"; }, 4000);
    return;
  }
  await api.remove(conversation.id);
  close();
  await fillList();
}

function listen() {
  place("ask").addEventListener("submit", (event) => {
    event.preventDefault();
    const field = place("text"), text = field.value;
    guarded(async () => {
      const last = tree.branch().at(-1);
      field.value = "";
      try { await say(text, last?.id ?? null); } catch (error) { field.value ||= text; throw error; }
    });
  });
  place("text").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      place("ask").requestSubmit();
    }
  });
  place("stop").addEventListener("click", () => guarded(() => api.stop(conversation.id, writing.id)));
  place("new").addEventListener("click", close);
  place("rename").addEventListener("click", rename);
  place("delete").addEventListener("click", (event) => guarded(() => remove(event.target)));
  place("search").addEventListener("input", () => guarded(fillList));
  settings.watch(() => {
    kept = kept.then(() => guarded(async () => {
      const facts = settings.read();
      if (conversation) conversation = await api.change(conversation.id, facts);
    }));
  });
}

listen();
draw();
if (isPhone()) place("shelf").open = false;
guarded(async () => {
  await fillList();
  const id = new URLSearchParams(location.search).get("c");
  if (id) await open(id);
});
