/** The page: wires its parts together. Nothing else knows of more than its own. */

import { activity } from "./activity.js";
import { installCard } from "./card.js";
import { ChatView } from "./chat.js";
import { CompletionView } from "./completion.js";
import { part } from "./element.js";
import { Engine } from "./engine.js";
import { RaceView } from "./race.js";
import { Settings } from "./settings.js";
import { installTabs } from "./tabs.js";

const byId = (id) => document.getElementById(id);

const engine = new Engine();
const settings = new Settings(byId("settings"), byId("settings-toggle"), byId("settings-summary"));
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
  loading.hidden = state !== "loading";
  loading.value = engine.health?.fraction ?? 0;
}

let offered = null;
engine.addEventListener("change", () => {
  showEngine();
  const loaded = engine.isReady ? engine.health.engine : null;
  if (loaded && loaded.model !== offered) settings.offer(loaded);
  offered = loaded?.model ?? offered;
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
