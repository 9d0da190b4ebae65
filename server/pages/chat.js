// The chat page: what its buttons and keys do.

import { setUpKeyField } from "./api.js";
import { Announcer } from "./announcer.js";
import { Answer, streamAnswer } from "./answer.js";
import { MessageList } from "./message_list.js";
import { Settings } from "./settings.js";

const HISTORY_ITEM = "octavo.history";
const FIGURES_MS = 250; // between updates of a running answer's figures

const byId = (id) => document.getElementById(id);
const [prompt, send, stop, again, problem] = ["prompt", "send", "stop-answer", "again", "problem"].map(byId);
const announcer = new Announcer(byId("announcements"));
const settings = new Settings();
const list = new MessageList();
let messages = JSON.parse(sessionStorage.getItem(HISTORY_ITEM) ?? "[]"); // {role, content}, no system prompt
let running = null; // the AbortController of the answer that streams

setUpKeyField(loadModels);
for (const message of messages) list.add(message);
if (matchMedia("(max-width: 55rem)").matches) byId("settings-details").open = false;
showState();
loadModels();
prompt.focus();

byId("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  sendPrompt();
});
prompt.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    sendPrompt();
  }
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") running?.abort();
});
stop.addEventListener("click", () => running?.abort());
again.addEventListener("click", answerAgain);
byId("new-chat").addEventListener("click", () => {
  running?.abort();
  messages = [];
  list.clear();
  changed();
  prompt.focus();
});

async function loadModels() {
  try {
    await settings.loadModels();
    showProblem("");
  } catch (error) {
    showProblem(error.message);
  }
}

function sendPrompt() {
  const content = prompt.value.trim();
  if (running || !content) return;
  const parameters = settings.parameters();
  if (!parameters) return;
  prompt.value = "";
  messages.push({ role: "user", content });
  list.add(messages.at(-1));
  answer(parameters);
}

function answerAgain() {
  const parameters = settings.parameters();
  if (running || !parameters) return;
  if (messages.at(-1)?.role === "assistant") {
    messages.pop();
    list.removeLast();
  }
  prompt.focus(); // this button is about to go
  answer(parameters);
}

/** Stream the answer to what `messages` ends in. What a stopped or broken answer has brought is kept. */
async function answer(parameters) {
  const conversation = messages; // a new chat meanwhile is another one
  const system = settings.systemPrompt ? [{ role: "system", content: settings.systemPrompt }] : [];
  const request = { ...parameters, messages: [...system, ...conversation] };
  const view = list.add({ role: "assistant", content: "" });
  const result = new Answer();
  running = new AbortController();
  showProblem("");
  showState();
  view.isBusy = true;
  const ticking = setInterval(() => view.showFigures(figures(result)), FIGURES_MS);
  let closing = "End of the answer.";
  try {
    await streamAnswer(request, result, {
      signal: running.signal,
      onText: (text) => {
        view.append(text);
        if (result.reasoning) view.showReasoning(result.reasoning);
        announcer.add(text);
      },
    });
  } catch (error) {
    closing = error.name === "AbortError" ? "Stopped." : "";
    if (closing === "") showProblem(error.message);
  }
  clearInterval(ticking);
  running = null;
  view.isBusy = false;
  announcer.finish(closing);
  if (conversation !== messages) return;
  view.showFigures(figures(result, closing === "Stopped."));
  if (result.text) messages.push({ role: "assistant", content: result.text });
  else list.removeLast();
  changed();
}

/** "First token after 0.12 s, 38.2 tokens/s, 120 tokens", as far as it is known. */
function figures(result, isStopped = false) {
  if (result.timeToFirstToken === null) return "Waiting for the first token";
  const about = result.isCounted ? "" : "about ";
  const parts = [`First token after ${(result.timeToFirstToken / 1000).toFixed(2)} s`];
  if (result.tokensPerSecond) parts.push(`${about}${result.tokensPerSecond.toFixed(1)} tokens/s`);
  parts.push(`${about}${result.numTokens} token${result.numTokens === 1 ? "" : "s"}`);
  if (result.finishReason === "length") parts.push("cut at the limit");
  if (isStopped) parts.push("stopped");
  return parts.join(", ");
}

function changed() {
  sessionStorage.setItem(HISTORY_ITEM, JSON.stringify(messages));
  showState();
}

function showState() {
  const hadFocus = document.activeElement;
  send.hidden = running !== null;
  stop.hidden = running === null;
  again.hidden = running !== null || messages.length === 0;
  if (hadFocus?.hidden) prompt.focus(); // it would be lost with the button that had it
}

function showProblem(message) {
  problem.textContent = message;
  problem.hidden = !message;
}
