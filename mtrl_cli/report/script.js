"use strict";
for (const browser of document.querySelectorAll(".browser")) {
  const episodes = JSON.parse(browser.querySelector("script").textContent);
  const steps = browser.querySelector("[name=step]"), order = browser.querySelector("[name=order]");
  const list = browser.querySelector(".list"), place = browser.querySelector(".episode");
  const make = (tag, text, kind) => {
    const made = document.createElement(tag);
    if (text !== undefined) made.textContent = text;
    if (kind) made.className = kind;
    return made;
  };
  const told = value => value === null ? "–" : String(Math.round(value * 1000) / 1000);
  const signed = value => value === null ? "–" : (value > 0 ? "+" : "") + told(value);
  const show = (episode, button) => {
    for (const other of list.children) other.setAttribute("aria-pressed", String(other === button));
    const at = make("div", "Point at a token.", "at"), tokens = make("div", undefined, "tokens");
    let drawn = 0;
    for (const [kind, start, end] of episode.spans) {
      for (let i = start; i < Math.min(end, episode.ids.length); i++) {
        const said = episode.text[i].replaceAll("\n", "⏎\n") || "∅";
        const token = make("span", said, kind);
        let fact = `token ${i}, id ${episode.ids[i]}, ${kind}, mask 0`;
        if (kind === "sampled") {
          const above = episode.above[drawn], logprob = episode.logprobs[drawn++];
          const shade = 0.06 + 0.5 * (1 - Math.exp(logprob));
          token.style.background = `rgba(var(--sampled),${shade.toFixed(3)})`;
          const mask = episode.advantage === null ? "not trained" : `advantage ${signed(episode.advantage)}`;
          fact = `token ${i}, id ${episode.ids[i]}, sampled, mask 1, logprob ${logprob} (p = ${Math.exp(logprob).toFixed(4)}), ${mask}` +
            (above === undefined ? "" : `, ${signed(above)} above the initial policy's logprob`);
        }
        token.title = fact;
        token.addEventListener("mouseenter", () => { at.textContent = fact; });
        tokens.append(token);
      }
    }
    const head = make("h3", `Step ${episode.step}, group ${episode.group}, member ${episode.member}` +
      (episode.refill ? `, refill ${episode.refill}` : ""));
    const facts = make("p", `${episode.task} · policy of step ${episode.policy} · group: ${episode.outcome} · ended by ${episode.stop}` +
      ` · reward ${told(episode.reward)} · advantage ${signed(episode.advantage)}` +
      ` · ${episode.logprobs.length} of ${episode.ids.length + episode.cut} tokens sampled`, "soft");
    place.replaceChildren(head, facts);
    if (episode.failure) place.append(make("p", episode.failure, "warn"));
    place.append(tokens);
    if (episode.cut) place.append(make("p", `… ${episode.cut} more tokens are not in this file.`, "soft"));
    place.append(at);
    episode.turns.forEach((turn, index) => {
      const row = make("div", undefined, "turn");
      row.append(make("em", `turn ${index + 1}, ${turn.tokens} tokens`));
      if (turn.text) row.append(make("div", turn.text));
      for (const call of turn.calls) {
        row.append(make("em", `${call.name} answered` + (call.error ? " with an error" : "") +
          `, reward ${told(call.reward)}` + (call.done ? ", done" : "")), make("div", call.answer));
      }
      place.append(row);
    });
  };
  const fill = () => {
    const chosen = episodes.filter(episode => String(episode.step) === steps.value);
    const worth = episode => episode.reward === null ? -Infinity : episode.reward;
    if (order.value === "best") chosen.sort((a, b) => worth(b) - worth(a));
    if (order.value === "worst") chosen.sort((a, b) => worth(a) - worth(b));
    list.replaceChildren(...chosen.map(episode => {
      const button = make("button", `${episode.group}/${episode.member} · ${signed(episode.reward)}`);
      button.addEventListener("click", () => show(episode, button));
      return button;
    }));
    if (chosen.length) show(chosen[0], list.firstChild);
  };
  for (const step of new Set(episodes.map(episode => episode.step)))
    steps.append(make("option", step));
  steps.selectedIndex = steps.options.length - 1;
  steps.addEventListener("change", fill);
  order.addEventListener("change", fill);
  browser.querySelector(".needs-script").hidden = false;
  fill();
}
