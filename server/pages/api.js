// Calls of the server that this page came from, with the key that the user has given.

const KEY_ITEM = "octavo.key";

/** A failure in words that a user can act on. */
export class ApiError extends Error {
  constructor(message, status = 0) {
    super(message);
    this.status = status;
  }
}

/**
 * The response to a GET, or to a POST of `body` as JSON. Throws `ApiError`, or an `AbortError` if `signal` says so.
 * Paths are relative to the page, so that they also work behind a proxy's path.
 */
export async function call(path, { body, signal } = {}) {
  const headers = {};
  const key = savedKey();
  if (key) headers.Authorization = `Bearer ${key}`;
  if (body) headers["Content-Type"] = "application/json";
  let response;
  try {
    response = await fetch(new URL(path, document.baseURI), {
      method: body ? "POST" : "GET",
      headers,
      body: body && JSON.stringify(body),
      signal,
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("The server does not answer. Is it still running?");
  }
  if (!response.ok) throw await readError(response);
  return response;
}

async function readError(response) {
  if (response.status === 401) {
    const problem = savedKey() ? "The server does not accept this API key." : "This server wants an API key.";
    return new ApiError(`${problem} Enter it at the top of the page.`, 401);
  }
  const text = await response.text();
  let message;
  try {
    message = JSON.parse(text).error.message;
  } catch {
    message = `The server answered with status ${response.status}.`;
  }
  const wait = response.headers.get("Retry-After");
  return new ApiError(wait ? `${message} Try again in ${wait} s.` : message, response.status);
}

export function savedKey() {
  return sessionStorage.getItem(KEY_ITEM) ?? "";
}

/** Wire up the header's key field. The key stays in this tab's session storage; `onChange` runs after a change. */
export function setUpKeyField(onChange) {
  const form = document.getElementById("key-form");
  const field = document.getElementById("key");
  field.value = savedKey();
  form.addEventListener("submit", (event) => event.preventDefault()); // Enter; the change event follows or came
  field.addEventListener("change", () => {
    const key = field.value.trim();
    if (key) sessionStorage.setItem(KEY_ITEM, key);
    else sessionStorage.removeItem(KEY_ITEM);
    onChange();
  });
}
