// One message on the page. Everything in it is made of elements and texts, never of HTML.
import { markdown } from "./markdown.js";

const NAMES = { user: "You", assistant: "The model" };
const ENDS = { stopped: "stopped", failed: "failed", interrupted: "interrupted by the end of the server" };

function element(name, className, text) {
  const made = document.createElement(name);
  if (className) made.className = className;
  if (text) made.textContent = text;
  return made;
}

function button(text, label, act) {
  const made = element("button", "", text);
  made.type = "button";
  made.setAttribute("aria-label", label);
  made.addEventListener("click", act);
  return made;
}

function folded(title, text) {
  const made = element("details"), inside = element("div", "", text);
  made.append(element("summary", "", title), inside);
  return made;
}

/** A call, and what came of it where the server ran it. */
const callOf = ({ name, arguments: given, output }, number) => output === undefined
  ? folded(`Call ${number}: ${name}`, given)
  : folded(`Tool ${number}: ${name}`, `${given}\n\n${output}`);

/** The excerpts that an answer stands on, each with where it is from. */
function sourcesOf(sources) {
  const made = element("details", "sources");
  made.append(element("summary", "", sources.length === 1 ? "1 source" : `${sources.length} sources`));
  for (const { number, name, page, heading, text } of sources) {
    const where = `[${number}] ${name}${page ? `, page ${page}` : ""}${heading ? `: ${heading}` : ""}`;
    made.append(element("p", "where", where), element("div", "", text));
  }
  return made;
}

function factsOf(message) {
  const facts = [];
  if (message.role === "assistant") facts.push(...(message.model ? [message.model] : []), `${message.tokens} tokens`);
  if (message.seconds >= 0.1) facts.push(`${(message.tokens / message.seconds).toFixed(1)} tokens/s`);
  if (ENDS[message.status]) facts.push(ENDS[message.status]);
  return facts.join(" · ");
}

/** Returns the element of a message; `acts` has what its buttons do. */
export function show(message, siblings, acts) {
  const place = element("article", `msg ${message.role}`);
  place.dataset.id = message.id;
  const wasOpen = new Set();
  place.append(element("h2", "who", NAMES[message.role]));
  const inside = element("div", "inside");
  place.append(inside);
  place.refresh = () => fill(inside, message, wasOpen);
  place.refresh();
  place.append(foot(place, message, siblings, acts));
  return place;
}

function fill(place, message, wasOpen) {
  for (const one of place.querySelectorAll("details")) {
    const title = one.firstChild.textContent;
    if (one.open) wasOpen.add(title); else wasOpen.delete(title);
  }
  const text = element("div", "text");
  text.dir = "auto";
  if (message.role === "user") text.textContent = message.content;
  else text.append(markdown(message.content));
  const parts = [];
  if (message.reasoning) parts.push(folded("Reasoning", message.reasoning));
  parts.push(text);
  const calls = message.calls.map((call, index) => callOf(call, index + 1));
  // What the server ran came before the answer, what a client is asked to run comes behind it.
  parts.splice(message.calls.some((call) => "output" in call) ? -1 : parts.length, 0, ...calls);
  if (message.sources.length) parts.push(sourcesOf(message.sources));
  if (message.error) parts.push(element("p", "bad", message.error));
  for (const part of parts) if (part.tagName === "DETAILS") part.open = wasOpen.has(part.firstChild.textContent);
  place.replaceChildren(...parts);
  place.setAttribute("aria-busy", String(message.status === "writing"));
  const facts = place.parentNode?.querySelector(".facts");
  if (facts) facts.textContent = factsOf(message);
}

function foot(place, message, siblings, acts) {
  const made = element("div", "foot dim");
  if (siblings.length > 1) {
    const at = siblings.indexOf(message);
    const back = button("‹", "The branch before", () => acts.step(message, -1));
    const on = button("›", "The next branch", () => acts.step(message, 1));
    back.disabled = at === 0;
    on.disabled = at === siblings.length - 1;
    made.append(back, element("span", "", `${at + 1} of ${siblings.length}`), on);
  }
  const copy = element("button");
  copy.setAttribute("aria-label", "Copy this message");
  made.append(zse.copying(copy, () => message.content));
  if (message.role === "user") made.append(button("Edit", "Edit this message as a new branch", () => edit(place, message, acts)));
  else made.append(button("Again", "Answer again as a new branch", () => acts.again(message)));
  made.append(element("span", "facts", factsOf(message)));
  return made;
}

function edit(place, message, acts) {
  const area = element("textarea");
  area.value = message.content;
  area.rows = 4;
  area.dir = "auto";
  area.setAttribute("aria-label", "The message, edited");
  const save = button("Send", "Send the edited message", () => acts.edit(message, area.value));
  const leave = button("Cancel", "Leave it as it was", () => acts.redraw());
  const ends = element("div", "acts");
  save.classList.add("main");
  ends.append(save, leave);
  place.replaceChildren(area, ends);
  area.focus();
}
