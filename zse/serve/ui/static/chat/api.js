// The server's side of conversations.
const ROOT = "api/chat/conversations";
const json = async (path, options) => (await zse.ask(ROOT + path, options)).json();

export const list = async (query) => (await json(`?q=${encodeURIComponent(query)}`)).conversations;
export const create = (facts) => json("", { method: "POST", json: facts });
export const get = (id) => json(`/${id}`);
export const change = (id, facts) => json(`/${id}`, { method: "PATCH", json: facts });
export const remove = (id) => zse.ask(`${ROOT}/${id}`, { method: "DELETE" });
export const messages = async (id) => (await json(`/${id}/messages`)).messages;
export const add = (id, message) => json(`/${id}/messages`, { method: "POST", json: message });
export const answer = (id, parent) => json(`/${id}/answers`, { method: "POST", json: { parent } });
export const stop = (id, message) => json(`/${id}/messages/${message}/stop`, { method: "POST" });
export const exportAddress = (id, format) => `${ROOT}/${id}/export?format=${format}`;

/** Read an answer as it grows, over reloads and restarts; returns what stops the reading. */
export function follow(id, message, changed) {
  let source, timer;
  function open() {
    source = new EventSource(`${ROOT}/${id}/messages/${message.id}/events`);
    source.addEventListener("message", (event) => take(JSON.parse(event.data)));
    source.addEventListener("error", () => {
      if (source.readyState === EventSource.CLOSED) timer = setTimeout(open, 2000);
    });
  }
  function take(row) {
    if (!row.status) return; // the server ends; the browser asks again
    message.content = (row.begins ? "" : message.content) + row.content;
    message.reasoning = (row.begins ? "" : message.reasoning) + row.reasoning;
    const { calls, status, error, tokens, seconds } = row;
    Object.assign(message, { calls, status, error, tokens, seconds });
    if (status !== "writing") source.close();
    changed(message);
  }
  open();
  return () => { clearTimeout(timer); source.close(); };
}
