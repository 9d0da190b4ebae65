// Tells a screen reader of a streamed answer in whole sentences, not at each token.

const PAUSE_MS = 2500; // between announcements, so that one can be heard before the next

export class Announcer {
  #region;
  #pending = "";
  #timer = null;

  /** `region` is an element with aria-live. */
  constructor(region) {
    this.#region = region;
  }

  /** More of the text has come; it is told up to the last end of a sentence, at most every few seconds. */
  add(text) {
    this.#pending += text;
    this.#timer ??= setTimeout(() => this.#tellSentences(), PAUSE_MS);
  }

  /** Nothing more comes: tell the rest, and `closing`. */
  finish(closing) {
    clearTimeout(this.#timer);
    this.#timer = null;
    this.#tell(`${this.#pending} ${closing}`.trim());
    this.#pending = "";
  }

  #tellSentences() {
    this.#timer = null;
    const sentences = this.#pending.match(/^[^]*[.!?:;\n](?=\s|$)/)?.[0];
    if (!sentences) return;
    this.#pending = this.#pending.slice(sentences.length);
    this.#tell(sentences.trim());
  }

  #tell(text) {
    this.#region.textContent = text;
  }
}
