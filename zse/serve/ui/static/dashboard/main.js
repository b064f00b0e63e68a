// The dashboard: one socket feeds the numbers, the live charts and the table of models.
import { LiveChart } from "./charts.js";
import { showHistory } from "./history.js";
import { bytes, milliseconds, percent, span, whole } from "./numbers.js";
import { openStats } from "./socket.js";

const charts = {
  rate: new LiveChart("chart-rate", ["tokens/s"]),
  queue: new LiveChart("chart-queue", ["running", "waiting"]),
  memory: new LiveChart("chart-memory", ["memory", "KV"], [0, 100]),
};
let before = null;

function show(name, text) {
  for (const place of document.querySelectorAll(`[data-show="${name}"]`)) place.textContent = text;
}

const sum = (models, field) => models.reduce((total, model) => total + model[field], 0);

/** Tokens a second since the sample before; the counters of a model that was unloaded are gone. */
function rateOf(sample) {
  const written = sum(sample.stats.models, "generated_tokens");
  const rate = before ? Math.max(0, written - before.written) / (sample.timestamp - before.timestamp) : 0;
  before = { written, timestamp: sample.timestamp };
  return rate;
}

function memoryOf(stats) {
  if (stats.gpu.available) {
    const total = stats.gpu.gpus.reduce((all, gpu) => all + gpu.total_bytes, 0);
    const used = stats.gpu.gpus.reduce((all, gpu) => all + gpu.used_bytes, 0);
    return { title: "GPU memory", used, total };
  }
  const { total_bytes: total, available_bytes: left } = stats.memory;
  return { title: "Machine memory", used: total - left, total };
}

/** A model that is not there now has a state and no numbers. */
function row(model, seats) {
  const line = document.createElement("tr");
  const seat = seats.get(model.name);
  const state = `${seat?.status ?? "loaded"}${seat?.is_pinned ? ", pinned" : ""}`;
  const cells = model.device === undefined ? [model.name, state] : [model.name, state, model.device, model.quantization, model.running, model.waiting,
    percent(model.kv_usage), whole(model.generated_tokens), whole(model.prefix_hit_tokens)];
  while (cells.length < 9) cells.push("–");
  cells.forEach((text, index) => {
    const cell = document.createElement(index ? "td" : "th");
    if (!index) cell.scope = "row";
    cell.textContent = text;
    line.append(cell);
  });
  return line;
}

function rows(models, fleet) {
  const seats = new Map((fleet?.models ?? []).map((seat) => [seat.name, seat]));
  const here = new Set(models.map((model) => model.name));
  const away = [...seats.values()].filter((seat) => !here.has(seat.name));
  return [...models, ...away].map((model) => row(model, seats));
}

function take(sample) {
  const { stats, requests } = sample;
  const models = stats.models, memory = memoryOf(stats), rate = rateOf(sample);
  const running = sum(models, "running"), waiting = sum(models, "waiting");
  const kv = models.length ? Math.max(...models.map((model) => model.kv_usage)) : 0;
  const read = sum(models, "prompt_tokens");
  show("status", stats.status);
  show("rate", whole(rate));
  show("total", `${whole(requests.completion_tokens)} tokens`);
  show("queue", `${running}, ${waiting}`);
  show("most", whole(sum(models, "max_running")));
  show("first", milliseconds(requests.first_token_ms.p50));
  show("first95", milliseconds(requests.first_token_ms.p95));
  show("kv", percent(kv));
  show("hits", read ? percent(sum(models, "prefix_hit_tokens") / read) : "–");
  show("memory-title", memory.title);
  show("memory", bytes(memory.used));
  show("memory-of", `of ${bytes(memory.total)}; this process ${bytes(stats.memory.process_bytes)}`);
  show("up", span(stats.uptime_seconds));
  show("load", stats.cpu.load_average);
  document.getElementById("models").replaceChildren(...rows(models, stats.fleet));
  charts.rate.add(sample.timestamp, [rate]);
  charts.queue.add(sample.timestamp, [running, waiting]);
  charts.memory.add(sample.timestamp, [100 * memory.used / memory.total, 100 * kv]);
}

openStats(take);
showHistory();
