// What was asked over the last hours, from the server's account of it.
import { Chart } from "./charts.js";
import { milliseconds, whole } from "./numbers.js";

export function showHistory() {
  const choice = document.getElementById("history-minutes");
  const requests = new Chart("chart-requests", ["requests"]);
  const tokens = new Chart("chart-tokens", ["written", "read"]);

  async function load() {
    const minutes = Number(choice.value), step = Math.max(1, minutes / 120);
    try {
      const [series, sums] = await Promise.all([
        zse.ask(`api/analytics/timeseries?minutes=${minutes}&interval_minutes=${step}`).then((answer) => answer.json()),
        zse.ask(`api/analytics?minutes=${minutes}`).then((answer) => answer.json()),
      ]);
      const column = (field) => series.points.map((point) => point[field]);
      requests.set([column("timestamp"), column("requests")]);
      tokens.set([column("timestamp"), column("completion_tokens"), column("prompt_tokens")]);
      document.getElementById("history-text").textContent =
        `${whole(sums.total_requests)} requests, ${whole(sums.aborted_requests)} of them given up; ` +
        `${whole(sums.prompt_tokens)} tokens read, ${whole(sums.completion_tokens)} written; ` +
        `half of the answers took up to ${milliseconds(sums.latency_ms.p50)}.`;
    } catch (error) {
      zse.notify(error.message);
    }
  }
  choice.addEventListener("change", load);
  setInterval(load, 60000);
  load();
}
