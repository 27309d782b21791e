/** Calls to the public API: JSON, and streams of server-sent events as async generators.
 *
 * Owns the messages for what can go wrong on the way. Every failure is an ApiError whose message is a sentence.
 */

import { apiKey } from "./key.js";

export class ApiError extends Error {
  /** status: of HTTP, 0 where there was no answer; code: OpenAI's or ours; retryAfter: seconds or null. */
  constructor(message, { status = 0, code = "network", retryAfter = null } = {}) {
    super(message);
    this.name = "ApiError";
    Object.assign(this, { status, code, retryAfter });
  }
}

const UNREACHED = "The server does not answer. Is it still running?";
const CUT = "The reply broke off: the stream ended without its last line.";

async function call(path, { method = "GET", body, signal } = {}) {
  const headers = {};
  if (body !== undefined) headers["Content-Type"] = "application/json";
  if (apiKey.value) headers.Authorization = `Bearer ${encodeKey(apiKey.value)}`;
  const sent = { method, headers, signal, body: body === undefined ? undefined : JSON.stringify(body) };
  let response;
  try {
    response = await fetch(path, sent);
  } catch (error) {
    throw error.name === "AbortError" ? error : new ApiError(UNREACHED);
  }
  if (!response.ok && !path.startsWith("/health")) throw await readError(response);
  return response;
}

/** Header values are bytes: a key beyond Latin-1 goes as UTF-8, as other clients send it. */
function encodeKey(key) {
  return String.fromCharCode(...new TextEncoder().encode(key));
}

async function readError(response) {
  const wait = Number.parseInt(response.headers.get("retry-after") ?? "", 10);
  const details = { status: response.status, code: "http_error", retryAfter: Number.isNaN(wait) ? null : wait };
  try {
    const { error } = await response.json();
    return new ApiError(error.message, { ...details, code: error.code });
  } catch {
    return new ApiError(`The server answered with status ${response.status}.`, details);
  }
}

export async function getJson(path, options = {}) {
  const response = await call(path, options);
  try {
    return await response.json();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("The server's answer cannot be read.");
  }
}

/** The chunks of a streamed reply. Ends after [DONE]; throws ApiError for an error event or a stream that is cut. */
export async function* stream(path, body, signal) {
  const response = await call(path, { method: "POST", body: { ...body, stream: true }, signal });
  for await (const data of events(response.body)) {
    if (data === "[DONE]") return;
    const chunk = parse(data);
    if (chunk.error) throw new ApiError(chunk.error.message, { status: 200, code: chunk.error.code });
    yield chunk;
  }
  throw new ApiError(CUT, { status: 200, code: "stream_cut" });
}

function parse(data) {
  try {
    return JSON.parse(data);
  } catch {
    throw new ApiError(CUT, { status: 200, code: "stream_cut" });
  }
}

/** The data of each server-sent event; comment lines are passed over. */
export async function* events(bytes) {
  const reader = bytes.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    while (true) {
      const { value, done } = await reader.read();
      if (done) return;
      const lines = (rest + value).split(/\r?\n/);
      rest = lines.pop();
      for (const line of lines) if (line.startsWith("data:")) yield line.slice(5).trimStart();
    }
  } catch (error) {
    throw error.name === "AbortError" ? error : new ApiError(CUT, { status: 200, code: "stream_cut" });
  } finally {
    reader.cancel().catch(() => {}); // the sender may be gone already
  }
}

/** Delete drafting sessions of this page on the server. Lists them first, so that no delete is answered 404. */
export async function forget(sessionIds) {
  const { data } = await getJson("/v1/sessions");
  const known = new Set(data.map((session) => session.id));
  const ours = sessionIds.filter((id) => known.has(id));
  await Promise.all(ours.map((id) => getJson(`/v1/sessions/${encodeURIComponent(id)}`, { method: "DELETE" })));
}
