"use strict";
for (const browser of document.querySelectorAll(".browser")) {
  const { words, episodes, games } = JSON.parse(browser.querySelector("script").textContent);
  const steps = browser.querySelector("[name=step]"), order = browser.querySelector("[name=order]");
  const list = browser.querySelector(".list"), place = browser.querySelector(".episode");
  const make = (tag, text, kind) => {
    const made = document.createElement(tag);
    if (text !== undefined) made.textContent = text;
    if (kind) made.className = kind;
    return made;
  };
  const told = value => value === null ? "–" : String(Math.round(value * 1000) / 1000).replace("-", "−");
  const signed = value => value === null ? "–" : (value > 0 ? "+" : "") + told(value);
  const count = number => number.toLocaleString("en");

  // The tokens of an episode, and the line that tells of the one that is pointed at.
  const tokensOf = episode => {
    const all = make("div", undefined, "tokens"), at = make("div", undefined, "at");
    const facts = new Map(), [gapStart, gapEnd] = episode.gap;
    let drawn = 0, shown = 0;
    for (const [kind, start, end] of episode.spans) {
      for (let i = start; i < end; i++) {
        if (i >= gapStart && i < gapEnd) {
          if (i === gapStart) all.append(make("div", `… ${count(gapEnd - gapStart)} tokens are not in this file …`, "gap"));
          i = Math.min(end, gapEnd) - 1;
          continue;
        }
        const id = episode.ids[shown++], text = words[id];
        const token = make("span", text === undefined ? String(id) : text.replaceAll("\n", "⏎\n") || "∅", kind);
        if (text === undefined) token.classList.add("id");
        let fact = `token ${i}, id ${id}, ${kind}, mask 0`;
        if (kind === "sampled") {
          const above = episode.above[drawn], logprob = episode.logprobs[drawn++];
          token.style.background = `rgba(var(--sampled),${(0.06 + 0.5 * (1 - Math.exp(logprob))).toFixed(3)})`;
          const mask = episode.advantage === null ? "not trained" : `advantage ${signed(episode.advantage)}`;
          fact = `token ${i}, id ${id}, sampled, mask 1, logprob ${String(logprob).replace("-", "−")} (p = ${Math.exp(logprob).toFixed(4)}), ${mask}` +
            (above === undefined ? "" : `, ${signed(above)} above the initial policy's logprob`);
        }
        facts.set(token, fact);
        all.append(token);
      }
    }
    let current = null;
    const point = token => {
      if (current) current.classList.remove("current");
      current = token;
      token.classList.add("current");
      at.textContent = facts.get(token);
    };
    const near = (token, way) => {
      do token = token && token[way]; while (token && !facts.has(token));
      return token;
    };
    all.tabIndex = 0;
    all.setAttribute("role", "group");
    all.setAttribute("aria-label", "tokens; left and right go from one to the next");
    at.setAttribute("aria-live", "polite");
    all.addEventListener("mouseover", event => { if (facts.has(event.target)) point(event.target); });
    all.addEventListener("keydown", event => {
      const way = { ArrowLeft: "previousSibling", ArrowRight: "nextSibling" }[event.key];
      const next = way && current && near(current, way);
      if (!next) return;
      event.preventDefault();
      point(next);
      next.scrollIntoView({ block: "nearest" });
    });
    const first = all.querySelector(".sampled") || all.querySelector("span");
    if (first) point(first);
    return [all, at];
  };

  const turnOf = (turn, index) => {
    const row = make("div", undefined, "turn");
    row.append(make("em", `turn ${index + 1} · ${count(turn.tokens)} tokens`));
    if (turn.text) row.append(make("div", turn.text));
    for (const call of turn.calls) {
      row.append(make("em", `${call.name} answered` + (call.error ? " with an error" : "") +
        ` · reward ${told(call.reward)}` + (call.done ? " · done" : "")), make("div", call.answer));
    }
    return row;
  };

  const show = (episode, button) => {
    for (const other of list.querySelectorAll("button")) {
      other.setAttribute("aria-pressed", String(other === button));
      other.tabIndex = other === button ? 0 : -1;
    }
    const length = episode.ids.length + episode.gap[1] - episode.gap[0];
    const head = make("h3", games ? `Game ${episode.group}` + (pairs ? ` of ${episode.policy}` : "") :
      (episode.step ? `Step ${episode.step}, group ` : "Group ") + `${episode.group}, member ${episode.member}` +
      (episode.refill ? `, refill ${episode.refill}` : ""));
    const facts = make("p", `${episode.task} · policy ${episode.policy} · ` +
      (episode.outcome ? `group: ${episode.outcome} · ` : "") + `ended by ${episode.stop}` +
      ` · reward ${told(episode.reward)}` + (episode.advantage === null ? "" : ` · advantage ${signed(episode.advantage)}`) +
      ` · ${count(episode.sampled)} of ${count(length)} tokens sampled`, "soft");
    place.replaceChildren(head, facts);
    if (episode.failure) place.append(make("p", episode.failure, "warn"));
    place.append(...tokensOf(episode), ...episode.turns.map(turnOf));
  };

  // The games of an evaluation come from the worst to the best; of two policies they stay in pairs.
  const ranks = [...new Set(episodes.map(episode => episode.group))];
  const pairs = games && episodes.length > ranks.length;
  const fill = () => {
    const chosen = episodes.filter(episode => String(episode.step) === steps.value);
    const worth = episode => games ? ranks.indexOf(episode.group) : episode.reward === null ? -Infinity : episode.reward;
    if (games && order.value === "group") chosen.sort((a, b) => a.group - b.group);
    if (order.value === "best") chosen.sort((a, b) => worth(b) - worth(a));
    if (order.value === "worst") chosen.sort((a, b) => worth(a) - worth(b));
    list.replaceChildren();
    const rows = pairs || order.value === "group" && chosen.some(episode => episode.member > 0);
    let row, group;
    for (const episode of chosen) {
      if (!row || (rows && episode.group !== group)) list.append(row = make("div"));
      group = episode.group;
      const button = make("button", (games ? episode.group + (pairs ? ` · ${episode.policy}` : "") : `${episode.group}/${episode.member}`) +
        ` · ${signed(episode.reward)}`);
      button.addEventListener("click", () => show(episode, button));
      row.append(button);
    }
    const spread = one => {
      const rewards = chosen.filter(e => e.group === one && e.reward !== null).map(e => e.reward);
      return Math.max(...rewards) - Math.min(...rewards);
    };
    let first = 0;  // of the group with the most spread rewards, which has the most to tell
    if (rows && !games) chosen.forEach((episode, at) => {
      if (spread(episode.group) > spread(chosen[first].group)) first = at;
    });
    if (chosen.length) show(chosen[first], list.querySelectorAll("button")[first]);
  };
  list.addEventListener("keydown", event => {
    const buttons = [...list.querySelectorAll("button")], at = buttons.indexOf(document.activeElement);
    const to = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: buttons.length - 1 }[event.key];
    if (to === undefined || !buttons[to]) return;
    event.preventDefault();
    buttons[to].focus();
    buttons[to].click();
  });
  steps.parentNode.hidden = episodes.every(episode => !episode.step);
  for (const step of new Set(episodes.map(episode => episode.step)))
    steps.append(make("option", step));
  steps.selectedIndex = steps.options.length - 1;
  if (games) {
    order.value = "worst";
    order.options[0].textContent = "number of the game";
    browser.querySelector(".what").textContent = pairs ? "game, policy" : "game";
    if (pairs) list.classList.add("pairs");
  }
  steps.addEventListener("change", fill);
  order.addEventListener("change", fill);
  browser.querySelector(".needs-script").hidden = false;
  fill();
}
