// Calls a running server through Ollama's Node client, streamed and plain, and prints what it read as JSON.
import { Ollama } from "ollama";

const [host, model] = process.argv.slice(2);
const client = new Ollama({ host });
const content = "Tell me a story about a fox.";
const options = { temperature: 0, num_predict: 40 };

async function chat() {
  const body = { model, messages: [{ role: "user", content }], options };
  const whole = await client.chat(body);
  let streamed = "";
  for await (const part of await client.chat({ ...body, stream: true })) streamed += part.message.content;
  return { plain: whole.message.content, streamed, done: whole.done_reason };
}

async function generate() {
  const body = { model, prompt: content, options };
  const whole = await client.generate(body);
  let streamed = "";
  for await (const part of await client.generate({ ...body, stream: true })) streamed += part.response;
  return { plain: whole.response, streamed };
}

async function error() {
  try {
    await client.chat({ model: "other", messages: [{ role: "user", content }] });
  } catch (refused) {
    return { status: refused.status_code, has_sentence: refused.message.includes("does not exist") };
  }
  return null;
}

async function abort() {
  const stream = await client.generate({ model, prompt: content, options: { temperature: 1 }, stream: true });
  for await (const _ of stream) break;
  stream.abort();
}

const { models } = await client.list();
const told = { chat: await chat(), generate: await generate(), error: await error() };
await abort();
console.log(JSON.stringify({ ...told, models: models.map((each) => each.name) }));
