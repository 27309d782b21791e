/** The page: creates its parts and wires them together. */

import { activity } from "./api/activity.js";
import { Engine } from "./api/engine.js";
import { installCard } from "./drafting/card.js";
import { part } from "./elements/element.js";
import { Settings } from "./elements/settings.js";
import { ModelPicker } from "./elements/model_picker.js";
import { installTabs } from "./elements/tabs.js";
import { ChatView } from "./pages/chat.js";
import { CompletionView } from "./pages/completion.js";
import { RaceView } from "./pages/race.js";

const byId = (id) => document.getElementById(id);

const engine = new Engine();
const settings = new Settings(byId("settings"), byId("settings-toggle"), byId("settings-summary"));
new ModelPicker(byId("models"), engine, settings);
const views = {
  race: new RaceView(byId("race"), engine, settings),
  chat: new ChatView(byId("chat"), engine, settings),
  completion: new CompletionView(byId("completion"), engine, settings),
};

function showEngine() {
  const [place, loading] = [byId("engine"), byId("loading")];
  const state = engine.health?.status ?? "unreachable";
  place.dataset.state = state;
  const sentence = part(place, "sentence");
  if (sentence.textContent !== engine.sentence) sentence.textContent = engine.sentence;
  place.title = engine.health?.engine?.context_note ?? "";
  loading.hidden = state !== "loading";
  loading.value = engine.health?.fraction ?? 0;
}

let offered = null;
engine.addEventListener("change", () => {
  showEngine();
  settings.model = engine.named;
  const loaded = engine.served;
  if (loaded && loaded.served_name !== offered) settings.offer(loaded);
  offered = loaded?.served_name ?? offered;
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") activity.stop();
});
document.addEventListener("visibilitychange", () => {
  if (!document.hidden) engine.watch();
});
installCard();
installTabs(document.querySelector('[role="tablist"]'), (name) => views[name].shown());
engine.watch();
