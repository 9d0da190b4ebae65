// Server-sent events from a fetched stream. (EventSource can neither POST nor send a key.)

/** Takes the stream's text as it was cut by the network; see the WHATWG event stream format. */
export class EventParser {
  #rest = "";
  #data = [];

  /** The data of each event that `text` completes. */
  feed(text) {
    // A CR at the very end may be half of a CRLF, so it stays in the rest.
    const lines = (this.#rest + text).split(/\r\n|\n|\r(?!$)/);
    this.#rest = lines.pop();
    const events = [];
    for (const line of lines) {
      if (line === "data" || line.startsWith("data:")) {
        this.#data.push(line.slice(line[5] === " " ? 6 : 5));
      } else if (line === "" && this.#data.length) {
        events.push(this.#data.join("\n"));
        this.#data = [];
      }
    }
    return events;
  }
}

/** The data of each event of a response's body. */
export async function* readEvents(body) {
  const parser = new EventParser();
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    yield* parser.feed(value);
  }
}
