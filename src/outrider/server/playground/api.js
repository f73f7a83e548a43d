// Talking to the server that sent this page. Addresses are relative, so the page also works behind a path prefix.
import { EventParser } from "./sse.js";

/** What went wrong, in words for the person at the page. */
export class ApiError extends Error {
  constructor(message, status = 0) {
    super(message);
    this.status = status;
  }
}

function headers(key) {
  return { "Content-Type": "application/json", ...(key ? { Authorization: `Bearer ${key}` } : {}) };
}

/** The words of an error response, whatever came: `{error: {message, param}}`, other JSON, or a proxy's page. */
export function explain(status, text, retryAfter = null) {
  let error = {};
  try {
    error = JSON.parse(text).error ?? {};
  } catch {
    // not JSON; the status has to do
  }
  if (status === 401) return "This server asks for an API key. Enter it under Settings.";
  const said = typeof error.message === "string" && error.message ? error.message : `The server answered with status ${status}.`;
  const named = error.param && !said.includes(error.param) ? `${error.param}: ${said}` : said;
  return status === 429 && retryAfter ? `${named} Try again in ${retryAfter} s.` : named;
}

async function ask(path, options) {
  let response;
  try {
    response = await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("The server cannot be reached. Is `outrider serve` still running?");
  }
  if (!response.ok) {
    const words = explain(response.status, await response.text(), response.headers.get("Retry-After"));
    throw new ApiError(words, response.status);
  }
  return response;
}

/** The models on offer, `[{id, outrider: {drafters, default_drafter, …}}]`. */
export async function models(key) {
  return (await (await ask("v1/models", { headers: headers(key) })).json()).data;
}

/** What /metrics says. */
export async function metrics(key) {
  return (await ask("metrics", { headers: headers(key) })).text();
}

/**
 * Streams one chat completion.
 * Yields `{content, tokens, step, finish, metrics, at}`; `at` is when it arrived, in ms of performance.now().
 */
export async function* chat(body, key, signal) {
  const request = { ...body, stream: true };
  const response = await ask("v1/chat/completions", {
    method: "POST",
    headers: headers(key),
    body: JSON.stringify(request),
    signal,
  });
  const parser = new EventParser();
  const reader = response.body.getReader();
  let finished = false;
  try {
    for (;;) {
      const { done, value } = await reader.read();
      const at = performance.now();
      for (const data of done ? parser.end() : parser.push(value)) {
        if (data === "[DONE]") return;
        const piece = read(JSON.parse(data), at);
        finished ||= piece.finish !== null;
        yield piece;
      }
      if (done) break;
    }
  } catch (error) {
    if (error instanceof SyntaxError) throw new ApiError("The server sent something this page cannot read.");
    if (error instanceof TypeError) throw new ApiError("The connection broke in the middle of the answer.");
    throw error;
  } finally {
    reader.cancel().catch(() => {});
  }
  if (!finished) throw new ApiError("The answer ended before it was finished.");
}

function read(event, at) {
  if (event.error) throw new ApiError(event.error.message ?? "The server reported an error.");
  const choice = event.choices?.[0] ?? {};
  return {
    content: choice.delta?.content ?? "",
    tokens: choice.outrider?.tokens ?? [],
    step: choice.outrider?.step ?? null,
    finish: choice.finish_reason ?? null,
    metrics: event.metrics ?? null,
    at,
  };
}
