// How answers are asked for; each conversation has its own, the last one's are where a new one begins.
const place = (id) => document.getElementById(id);
const OWN = "default";

const number = (id, least) => Number(place(id).value) >= least ? Number(place(id).value) : null;

function tell() {
  for (const [id, least] of [["temperature", 0], ["top_p", 0.05]]) {
    const text = number(id, least) ?? OWN;
    place(`${id}-text`).textContent = text;
    place(id).setAttribute("aria-valuetext", text);
  }
}

function toolsOf(text) {
  let found;
  try { found = JSON.parse(text); } catch (error) { throw new Error(`The tools are not JSON: ${error.message}.`); }
  if (!Array.isArray(found)) throw new Error('The tools are a JSON list: [{"type": "function", "function": {...}}].');
  return found;
}

/** What the fields say. Throws where the tools are no JSON list. */
export function read() {
  const tools = place("tools").value.trim();
  return {
    system: place("system").value,
    settings: {
      model: place("model").value || null,
      temperature: number("temperature", 0),
      top_p: number("top_p", 0.05),
      max_tokens: number("max_tokens", 1),
      tools: tools ? toolsOf(tools) : null,
      documents: place("documents").checked,
      server_tools: place("server-tools").checked,
    },
  };
}

export function write({ system, settings }) {
  place("system").value = system;
  place("model").value = settings.model ?? "";
  place("temperature").value = settings.temperature ?? -0.1;
  place("top_p").value = settings.top_p ?? 0;
  place("max_tokens").value = settings.max_tokens ?? "";
  place("documents").checked = settings.documents ?? false;
  place("server-tools").checked = settings.server_tools ?? false;
  if (settings.server_tools) place("server-tools-line").hidden = false; // also where the server has none by now
  place("tools").value = settings.tools ? JSON.stringify(settings.tools, null, 1) : "";
  tell();
}

/** Call `changed` whenever a person has changed something. */
export function watch(changed) {
  place("settings").addEventListener("input", tell);
  for (const id of ["settings", "documents", "server-tools"]) place(id).addEventListener("change", changed);
  tell();
}
