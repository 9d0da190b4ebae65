// One streamed chat answer and its figures.

import { ApiError, call } from "./api.js";
import { readEvents } from "./sse.js";

/** What has come of an answer so far. Times are of `performance.now()`. */
export class Answer {
  text = "";
  reasoning = "";
  finishReason = null;
  sentAt = performance.now();
  firstTokenAt = null;
  lastTokenAt = null;
  numTokens = 0;
  isCounted = false; // by the server; until then a chunk counts as a token

  /** Milliseconds until the first token; null before it. */
  get timeToFirstToken() {
    return this.firstTokenAt === null ? null : this.firstTokenAt - this.sentAt;
  }

  /** After the first token, which is waited for in another way than the rest; null without a second one. */
  get tokensPerSecond() {
    const seconds = (this.lastTokenAt - this.firstTokenAt) / 1000;
    return this.numTokens > 1 && seconds > 0 ? (this.numTokens - 1) / seconds : null;
  }

  /** Take in one chunk; the text that it brought. */
  add(chunk) {
    if (chunk.error) throw new ApiError(chunk.error.message);
    if (chunk.usage) {
      this.numTokens = chunk.usage.completion_tokens;
      this.isCounted = true;
    }
    const choice = chunk.choices?.[0];
    if (!choice) return "";
    this.finishReason ??= choice.finish_reason ?? null;
    const text = choice.delta?.content ?? "";
    const reasoning = choice.delta?.reasoning_content ?? "";
    if (text || reasoning) this.#noteToken();
    this.text += text;
    this.reasoning += reasoning;
    return text;
  }

  #noteToken() {
    this.lastTokenAt = performance.now();
    this.firstTokenAt ??= this.lastTokenAt;
    if (!this.isCounted) this.numTokens += 1;
  }
}

/**
 * Ask for an answer and fill `answer` with it, calling `onText(text)` for each piece that comes.
 * Throws `ApiError`, or an `AbortError` when `signal` stopped it; what had come until then stays in `answer`.
 */
export async function streamAnswer(request, answer, { signal, onText }) {
  const body = { ...request, stream: true, stream_options: { include_usage: true } };
  const response = await call("v1/chat/completions", { body, signal });
  try {
    for await (const data of readEvents(response.body)) {
      if (data === "[DONE]") return;
      onText(answer.add(JSON.parse(data)));
    }
  } catch (error) {
    if (error instanceof ApiError || error.name === "AbortError") throw error;
  }
  throw new ApiError("The connection was lost before the answer ended.");
}
