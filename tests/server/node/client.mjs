// Calls a running server through the official Node client, streamed and plain, and prints what it read as JSON.
import OpenAI from "openai";

const [baseURL, model] = process.argv.slice(2);
const client = new OpenAI({ baseURL, apiKey: "none", maxRetries: 0 });
const question = "Tell me a story about a fox.";

async function chat() {
  const body = { model, messages: [{ role: "user", content: question }], max_tokens: 40, temperature: 0 };
  const whole = await client.chat.completions.create(body);
  const { message, finish_reason: reason } = whole.choices[0];
  const streamed = { text: "", reason: null, usage: null };
  const stream = await client.chat.completions.create({
    ...body,
    stream: true,
    stream_options: { include_usage: true },
  });
  for await (const chunk of stream) {
    streamed.usage = chunk.usage ?? streamed.usage;
    for (const choice of chunk.choices) {
      streamed.text += choice.delta.content ?? "";
      streamed.reason = choice.finish_reason ?? streamed.reason;
    }
  }
  return { plain: { text: message.content, reason, usage: whole.usage }, streamed };
}

async function completion() {
  const body = { model, prompt: "def add(a, b):\n", max_tokens: 40, temperature: 0 };
  const whole = await client.completions.create(body);
  const { text, finish_reason: reason } = whole.choices[0];
  const streamed = { text: "", reason: null, usage: null };
  for await (const chunk of await client.completions.create({
    ...body,
    stream: true,
    stream_options: { include_usage: true },
  })) {
    streamed.usage = chunk.usage ?? streamed.usage;
    for (const choice of chunk.choices) {
      streamed.text += choice.text;
      streamed.reason = choice.finish_reason ?? streamed.reason;
    }
  }
  return { plain: { text, reason, usage: whole.usage }, streamed };
}

async function response() {
  const body = { model, input: question, max_output_tokens: 40, temperature: 0 };
  const whole = await client.responses.create(body);
  const streamed = { text: "", reason: null, usage: null };
  for await (const event of await client.responses.create({ ...body, stream: true })) {
    if (event.type === "response.output_text.delta") streamed.text += event.delta;
    if (event.type === "response.incomplete" || event.type === "response.completed") {
      streamed.reason = event.response.status;
      streamed.usage = event.response.usage;
    }
  }
  return { plain: { text: whole.output_text, reason: whole.status, usage: whole.usage }, streamed };
}

async function error() {
  try {
    await client.chat.completions.create({ model, messages: [{ role: "user", content: "a" }], temperature: -1 });
  } catch (refused) {
    const { status, code, param, requestID } = refused;
    return { status, code, param, has_request_id: typeof requestID === "string" };
  }
  return null;
}

async function abort() {
  const body = { model, prompt: "def add(a, b):\n", max_tokens: 1500, ignore_eos: true, stream: true };
  for await (const _ of await client.completions.create(body)) break;
}

const told = { chat: await chat(), completion: await completion(), response: await response(), error: await error() };
await abort();
console.log(JSON.stringify(told));
