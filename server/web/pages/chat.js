/** The Chat tab: a conversation with the model, in markdown and in the colours of its sources. */

import { activity } from "../api/activity.js";
import { forget } from "../api/client.js";
import { Generation, bodyOf } from "../api/generation.js";
import { contentOf } from "../api/picture.js";
import { Trace, packed, unpacked } from "../api/trace.js";
import { Inspector } from "../drafting/inspector.js";
import { Legend } from "../drafting/legend.js";
import { announce } from "../elements/announcer.js";
import { part } from "../elements/element.js";
import { Notices } from "../elements/notices.js";
import { PictureTray } from "../elements/picture_tray.js";
import { preparePrompt } from "../elements/prompt_box.js";
import { RunButton } from "../elements/run_button.js";
import { endOf } from "./completion.js";
import { ConversationList, download } from "./conversations.js";
import { History } from "./history.js";
import { ReplyMessage, saidBy } from "./message.js";

const NO_CHAT = "This model has no chat template, so it cannot chat. The Completion tab works.";
const FULL = "The browser's store is full: this conversation will not be there next time.";
const TITLE_LENGTH = 40;

export class ChatView {
  #history = new History();
  #replies = new Map(); // the container of a reply's text -> what its inspector shows

  constructor(root, engine, settings) {
    Object.assign(this, { engine, settings });
    this.prompt = part(root, "prompt");
    this.messages = part(root, "messages");
    this.button = new RunButton(part(root, "run"), this, engine);
    this.legend = new Legend(part(root, "legend"), root);
    this.inspector = new Inspector(part(root, "inspector"), root);
    this.notices = new Notices(part(root, "notices"), () => settings.askForKey());
    this.box = preparePrompt(this.prompt);
    this.pictures = new PictureTray(part(root, "form"), engine, this.notices);
    this.list = new ConversationList(part(root, "list"), {
      choose: (id) => this.#open(this.#history.find(id)),
      rename: (id, title) => (this.#history.rename(id, title), this.#showList()),
      remove: (id) => this.#remove(id),
    });
    part(root, "new").addEventListener("click", () => this.#openNew());
    part(root, "export").addEventListener("click", () => download("gander-conversations.json", this.#history.export()));
    part(root, "form").addEventListener("submit", (event) => this.#onSubmit(event));
    root.addEventListener("choose-step", (event) => this.#inspect(event.target), { capture: true });
    engine.addEventListener("change", () => this.#checkTemplate());
    this.#open(this.#history.conversations[0] ?? this.#history.create());
  }

  shown() {
    this.box.grow();
    this.#scrollDown();
  }

  #checkTemplate() {
    if (!this.engine.served) return;
    const canChat = this.engine.served.has_chat_template;
    this.button.allow(canChat);
    this.prompt.disabled = !canChat;
    if (!canChat) this.notices.say(NO_CHAT, { kind: "note" });
  }

  #open(conversation) {
    if (activity.owner === this) activity.stop();
    this.conversation = conversation;
    this.#replies.clear();
    this.messages.replaceChildren();
    this.notices.clear();
    this.#follow(this.#empty(), null);
    for (const message of conversation.messages) this.#show(message);
    this.#showList();
    this.#scrollDown();
  }

  #openNew() {
    const empty = this.#history.conversations.find(({ messages }) => !messages.length);
    this.#open(empty ?? this.#history.create());
    this.prompt.focus();
  }

  #remove(id) {
    this.#history.remove(id);
    if (this.engine.isReady) forget([id]).catch(() => {}); // where this fails, the session expires by itself
    if (id !== this.conversation.id) return this.#showList();
    return this.#open(this.#history.conversations[0] ?? this.#history.create());
  }

  #showList() {
    this.list.show(this.#history.conversations, this.conversation.id);
  }

  #empty() {
    return { trace: new Trace(), tokensPerSecond: null, text: "", reasoning: "" };
  }

  #show({ role, content, pictures, reasoning = "", trace, tokensPerSecond, end = "" }) {
    if (role === "user") return this.messages.append(saidBy("user", content, pictures));
    const source = { text: content, reasoning, trace: unpacked(trace), tokensPerSecond };
    const reply = this.#append(source);
    reply.end.textContent = end;
    return reply.render();
  }

  #append(source) {
    const reply = new ReplyMessage(source);
    this.#replies.set(reply.text, source);
    this.messages.append(reply.root);
    this.#follow(source, reply.text);
    return reply;
  }

  #follow(source, text) {
    this.legend.show(source.trace);
    this.inspector.follow(source, text ? [text] : []);
    this.inspected = text;
  }

  /** A token of an older reply was chosen: the inspector turns to that reply. */
  #inspect(text) {
    if (text !== this.inspected && this.#replies.has(text)) this.#follow(this.#replies.get(text), text);
  }

  #onSubmit(event) {
    event.preventDefault();
    const content = this.prompt.value;
    const pictures = this.pictures.urls;
    if (!(content.trim() || pictures.length) || !this.button.canStart) return;
    this.box.set("");
    this.pictures.set([]);
    const { conversation } = this;
    if (!conversation.messages.length) conversation.title = content.trim().slice(0, TITLE_LENGTH) || "A picture";
    conversation.messages.push({ role: "user", content, ...(pictures.length && { pictures }) });
    this.messages.append(saidBy("user", content, pictures));
    this.#keep();
    this.#answer(conversation);
  }

  async #answer(conversation) {
    const generation = new Generation();
    const reply = this.#append(generation);
    const asked = conversation.messages.map(({ role, content, pictures }) => ({ role, content: contentOf(content, pictures) }));
    const body = { ...bodyOf("chat", asked, this.settings.value), session_id: conversation.id };
    this.notices.clear();
    this.#scrollDown();
    const onChunk = () => this.#onChunk(reply, generation);
    try {
      const wasStopped = await activity.run(this, (signal) => generation.run("chat", body, { signal, onChunk }));
      if (wasStopped && !generation.text) return reply.root.remove();
      this.#finish(conversation, reply, generation, wasStopped ? "Stopped." : endOf(generation));
    } catch (error) {
      if (generation.text) this.#finish(conversation, reply, generation, "This reply is not whole.");
      else reply.root.remove();
      this.notices.tell(error, () => this.#again(conversation, reply));
    }
  }

  /** Ask the last question once more; an unfinished reply to it is dropped. */
  #again(conversation, reply) {
    if (conversation !== this.conversation || !this.button.canStart) return;
    if (conversation.messages.at(-1).role === "assistant") conversation.messages.pop();
    reply.root.remove();
    this.#answer(conversation);
  }

  #onChunk(reply, generation) {
    const wasAtEnd = this.messages.scrollHeight - this.messages.scrollTop - this.messages.clientHeight < 60;
    reply.update(() => wasAtEnd && this.#scrollDown());
    if (this.inspected !== reply.text) return;
    this.inspector.update();
    this.legend.show(generation.trace);
  }

  #finish(conversation, reply, generation, end) {
    reply.render();
    reply.end.textContent = end;
    const { text: content, reasoning, trace, tokensPerSecond } = generation;
    conversation.messages.push({ role: "assistant", content, reasoning, end, tokensPerSecond, trace: packed(trace) });
    this.#keep();
    this.#scrollDown();
    announce(`Reply: ${content}`);
  }

  #keep() {
    if (!this.#history.save()) this.notices.say(FULL, { kind: "note" });
    this.#showList();
  }

  #scrollDown() {
    this.messages.scrollTop = this.messages.scrollHeight;
  }
}
