// The live page: asks for /debug/live each second while it is looked at, and shows the answer.

import { call, setUpKeyField } from "./api.js";
import { drawBlockMap } from "./block_map.js";
import { TimeChart } from "./chart.js";

const INTERVAL_MS = 1000;
const PERCENTILES = ["p50", "p90", "p99"];

const byId = (id) => document.getElementById(id);
const charts = {
  generated: new TimeChart(byId("generated-chart"), ["Generated tokens per second"]),
  prompt: new TimeChart(byId("prompt-chart"), ["Prompt tokens per second"]),
  queue: new TimeChart(byId("queue-chart"), ["Running", "waiting sequences"]),
};
const pause = byId("pause");
let isPaused = false;
let timer = null;

setUpKeyField(update);
pause.addEventListener("click", () => {
  isPaused = !isPaused;
  pause.setAttribute("aria-pressed", String(isPaused));
  if (isPaused) setText(byId("status"), "Paused");
  update();
});
document.addEventListener("visibilitychange", update);
update();

async function update() {
  clearTimeout(timer);
  timer = null;
  if (isPaused || document.hidden) return;
  let status = "Live";
  try {
    const live = await (await call("debug/live")).json();
    show(live);
    if (live.health !== "ok") status = `The server is not healthy: ${live.health}`;
  } catch (error) {
    status = error.status === 404 ? "This server keeps /debug/live off (--no-enable-debug-routes)." : error.message;
  }
  if (isPaused) return; // while the answer was under way
  setText(byId("status"), status);
  byId("status").classList.toggle("error", status !== "Live");
  timer ??= setTimeout(update, INTERVAL_MS);
}

function show(live) {
  const { history, blocks } = live;
  setText(byId("running"), live.running);
  setText(byId("running-note"), `of at most ${live.max_num_seqs} sequences`);
  setText(byId("waiting"), live.waiting);
  setText(byId("generating"), Math.round(history.generated_per_s.at(-1) ?? 0));
  setText(byId("kv"), `${((100 * blocks.num_used) / blocks.total).toFixed(1)} %`);
  setText(byId("kv-note"), `of ${blocks.total} blocks`);
  for (const element of document.getElementsByClassName("window")) setText(element, live.window_s / 60);
  charts.generated.draw(history.age_s, [history.generated_per_s], live.window_s);
  charts.prompt.draw(history.age_s, [history.prompt_per_s], live.window_s);
  charts.queue.draw(history.age_s, [history.running, history.waiting], live.window_s);
  showBlocks(blocks);
  for (const row of byId("latency").rows) showLatency(row, live.latency[row.dataset.name]);
  showRequests(live.requests);
}

function showBlocks(blocks) {
  drawBlockMap(byId("block-map"), blocks);
  setText(byId("blocks-used"), blocks.num_used);
  setText(byId("blocks-cached"), blocks.num_cached);
  setText(byId("blocks-empty"), blocks.total - blocks.num_used - blocks.num_cached);
  setText(byId("cell-note"), blocks.per_cell > 1 ? `A cell stands for ${blocks.per_cell} blocks.` : "");
}

function showLatency(row, latency) {
  const cells = PERCENTILES.map((name) => milliseconds(latency[name]));
  [...cells, latency.count].forEach((text, i) => setText(row.cells[i + 1], text));
}

/** Rows are reused in place, so that a selection in the table lasts. */
function showRequests(requests) {
  const body = byId("requests");
  requests.forEach((request, i) => {
    const texts = [
      request.request_id,
      request.state,
      request.age_s.toFixed(1),
      request.num_prompt_tokens,
      request.num_cached_tokens,
      request.num_generated_tokens,
      request.time_to_first_token_s?.toFixed(3) ?? "-",
      request.duration_s.toFixed(2),
      request.num_preemptions,
    ];
    const row = body.rows[i] ?? body.insertRow();
    texts.forEach((text, j) => setText(row.cells[j] ?? row.insertCell(), text));
  });
  byId("no-requests").hidden = requests.length > 0;
}

function milliseconds(seconds) {
  if (seconds === null) return "-";
  const value = seconds * 1000;
  return value < 100 ? value.toFixed(1) : value.toFixed(0);
}

function setText(element, text) {
  if (element.textContent !== String(text)) element.textContent = text;
}
