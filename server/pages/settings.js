// The settings form: parameters of the next request, kept for as long as the tab lives.

import { call } from "./api.js";

const ITEM = "octavo.settings";
const NUMBERS = ["temperature", "max_tokens", "top_p", "top_k", "seed"];

export class Settings {
  #form = document.getElementById("settings");
  #note = document.getElementById("model-note");

  constructor() {
    const saved = JSON.parse(sessionStorage.getItem(ITEM) ?? "{}");
    for (const [name, value] of Object.entries(saved)) this.#form.elements[name].value = value;
    this.#form.addEventListener("input", () => this.#save());
    this.#form.addEventListener("change", () => this.#save());
    this.#form.addEventListener("submit", (event) => event.preventDefault());
  }

  get systemPrompt() {
    return this.#form.elements.system.value.trim();
  }

  /** The request's fields; those left empty are left out. Shows what is wrong and returns null if anything is. */
  parameters() {
    if (!this.#form.reportValidity()) return null;
    const { elements } = this.#form;
    const parameters = {};
    if (elements.model.value) parameters.model = elements.model.value;
    for (const name of NUMBERS) {
      if (elements[name].value !== "") parameters[name] = elements[name].valueAsNumber;
    }
    if (elements.stop.value) parameters.stop = [elements.stop.value];
    return parameters;
  }

  /** List the server's models, and show the first one's defaults in the empty fields. Throws `ApiError`. */
  async loadModels() {
    const { data } = await (await call("v1/models")).json();
    const select = this.#form.elements.model;
    const chosen = select.value || JSON.parse(sessionStorage.getItem(ITEM) ?? "{}").model;
    select.replaceChildren(...data.map(({ id }) => new Option(id, id, false, id === chosen)));
    const [model] = data;
    this.#note.textContent = `Its context holds ${model.max_model_len} tokens.`;
    for (const [name, value] of Object.entries(model.default_sampling_params)) {
      if (name in this.#form.elements) this.#form.elements[name].placeholder = value;
    }
  }

  #save() {
    sessionStorage.setItem(ITEM, JSON.stringify(Object.fromEntries(new FormData(this.#form))));
  }
}
