// The conversation on the page.

const NAMES = { user: "You", assistant: "Model" };

export class MessageList {
  #list = document.getElementById("messages");
  #scroller = document.getElementById("scroller");
  #empty = document.getElementById("empty");
  #follows = true; // the end, until the user scrolls up
  #lastTop = 0;

  constructor() {
    this.#scroller.addEventListener("scroll", () => this.#noteScroll());
    const observer = new ResizeObserver(() => this.#follows && this.#scrollToEnd());
    observer.observe(this.#list);
    observer.observe(this.#scroller);
  }

  /** Show a message; the `MessageView` to write the rest of it into. */
  add({ role, content }) {
    const view = new MessageView(role);
    view.append(content);
    this.#list.append(view.item);
    this.#empty.hidden = true;
    this.#follows = true;
    return view;
  }

  removeLast() {
    this.#list.lastElementChild?.remove();
    this.#empty.hidden = this.#list.children.length > 0;
  }

  clear() {
    this.#list.replaceChildren();
    this.#empty.hidden = false;
  }

  #noteScroll() {
    const { scrollHeight, scrollTop, clientHeight } = this.#scroller;
    if (scrollHeight - scrollTop - clientHeight < 40) this.#follows = true;
    else if (scrollTop < this.#lastTop) this.#follows = false;
    this.#lastTop = scrollTop;
  }

  #scrollToEnd() {
    this.#scroller.scrollTop = this.#scroller.scrollHeight;
  }
}

/** One message: who, the text, and for answers reasoning and figures. Text is never taken for markup. */
class MessageView {
  #text = document.createTextNode("");
  #figures = make("p", "figures");
  #reasoning = null;

  constructor(role) {
    this.item = make("li", `message ${role}`);
    this.body = make("div", "text");
    this.body.append(this.#text);
    this.item.append(make("h3", "", NAMES[role]), this.body);
    if (role === "assistant") this.item.append(this.#figures);
  }

  append(text) {
    this.#text.appendData(text);
  }

  showReasoning(text) {
    if (!this.#reasoning) {
      const details = make("details", "reasoning");
      this.#reasoning = make("div", "text");
      details.append(make("summary", "", "Reasoning"), this.#reasoning);
      this.body.before(details);
    }
    this.#reasoning.textContent = text;
  }

  showFigures(text) {
    this.#figures.textContent = text;
  }

  set isBusy(isBusy) {
    this.item.setAttribute("aria-busy", String(isBusy));
  }
}

function make(tag, className, text = "") {
  const element = document.createElement(tag);
  if (className) element.className = className;
  element.textContent = text;
  return element;
}
