"use strict";
/* Live updates and keys. Every page works without it; it replaces parts of a page, and adds none. */
(() => {
  const body = document.body;
  const byId = (id) => document.getElementById(id);
  const base = body.dataset.base || "";

  /* ---- Times tick on the server's clock. ---- */

  const skew = body.dataset.now ? Date.parse(body.dataset.now) - Date.now() : 0;

  function coarse(seconds) {
    seconds = Math.abs(Math.trunc(seconds));
    if (seconds < 120) return `${seconds} s`;
    if (seconds < 7200) return `${Math.floor(seconds / 60)} min`;
    if (seconds < 172800) return `${Math.floor(seconds / 3600)} h`;
    return `${Math.floor(seconds / 86400)} d`;
  }

  function tick() {
    if (document.hidden) return;
    const now = Date.now() + skew;
    for (const time of document.querySelectorAll("time[data-time]")) {
      const away = (Date.parse(time.dateTime) - now) / 1000;
      let text = coarse(away);
      if (time.dataset.time === "ago") text = away > 0 ? `in ${text}` : `${text} ago`;
      if (time.textContent !== text) time.textContent = text;
    }
  }

  /* ---- The stream. ---- */

  const mark = byId("stream");
  const markAt = byId("stream-at");
  const freeze = byId("freeze");
  let source = null;
  let frozen = false;

  function say(state, words) {
    if (!mark) return;
    mark.dataset.state = state;
    mark.textContent = words;
  }

  function busy(part) {
    const selection = document.getSelection();
    if (part.contains(document.activeElement)) return true;
    return Boolean(selection && !selection.isCollapsed && part.contains(selection.anchorNode));
  }

  function replace(part, html) {
    // A part in use stays as it is; the next message has it again.
    if (part.innerHTML === html || busy(part)) return;
    const open = [...part.querySelectorAll("details[open]")].map((each) => each.id);
    const figures = [...part.querySelectorAll(".v")].map((each) => each.textContent);
    part.innerHTML = html;
    for (const id of open) {
      const fold = id && byId(id);
      if (fold) fold.open = true;
    }
    // The rows of a list may have been renewed under the cursor.
    if (cursor >= 0 && !current() && lines()[cursor]) lines()[cursor].setAttribute("data-cursor", "");
    part.querySelectorAll(".v").forEach((each, n) => {
      // A time changes every second, which is no news.
      const changed = figures.length && figures[n] !== each.textContent;
      if (changed && !each.querySelector("time")) each.dataset.changed = "";
    });
  }

  function apply(message) {
    const clock = message.at.slice(11, 19);
    const lost = byId("lost");
    if (message.lost) {
      say("lost", "No contact");
      byId("lost-at").textContent = message.lost.slice(11, 19);
      lost.hidden = false;
      return;
    }
    lost.hidden = true;
    say("live", "Live");
    if (markAt) markAt.textContent = clock;
    for (const [id, html] of Object.entries(message.parts)) {
      const part = byId(id);
      if (part) replace(part, html);
    }
    tick();
  }

  function connect() {
    if (source || frozen || document.hidden || !mark || !body.dataset.page) return;
    const query = new URLSearchParams(location.search);
    if (body.dataset.top && !query.has("top")) query.set("top", body.dataset.top);
    const about = new URLSearchParams({ page: body.dataset.page, query: query.toString() });
    if (body.dataset.id) about.set("id", body.dataset.id);
    source = new EventSource(`${base}/live?${about}`);
    source.onmessage = (event) => apply(JSON.parse(event.data));
    source.onerror = () => {
      say("lost", "No contact");
      if (source && source.readyState === EventSource.CLOSED) {
        disconnect();
        setTimeout(connect, 5000);
      }
    };
  }

  function disconnect() {
    if (source) source.close();
    source = null;
  }

  function toggleFreeze() {
    if (!freeze) return;
    frozen = !frozen;
    freeze.textContent = frozen ? "Go on" : "Freeze";
    freeze.setAttribute("aria-pressed", String(frozen));
    if (frozen) {
      disconnect();
      say("frozen", "Frozen at");
    } else connect();
  }

  document.addEventListener("visibilitychange", () => (document.hidden ? disconnect() : connect()));
  window.addEventListener("pagehide", disconnect);
  window.addEventListener("pageshow", connect);
  if (freeze) freeze.addEventListener("click", toggleFreeze);

  /* ---- Selection. ---- */

  const rows = () => byId("rows");
  const all = byId("all-here");
  const selected = byId("selected");
  const boxes = () => [...document.querySelectorAll("#rows input[name=id]")];

  function count() {
    if (!selected) return;
    const found = boxes();
    const on = found.filter((box) => box.checked);
    for (const box of found) box.closest("tr").toggleAttribute("data-on", box.checked);
    const bold = document.createElement("b");
    bold.textContent = on.length ? `${on.length} selected` : "Nothing selected";
    selected.replaceChildren(bold, on.length ? " on this page" : ": acts take all that match");
    if (all) {
      all.checked = on.length > 0 && on.length === found.length;
      all.indeterminate = on.length > 0 && on.length < found.length;
    }
  }

  if (all) {
    all.addEventListener("change", () => {
      for (const box of boxes()) box.checked = all.checked;
      count();
    });
  }
  document.addEventListener("change", (event) => {
    if (event.target.closest("#rows")) count();
  });
  count();

  /* ---- Keys. Never while typing. ---- */

  let cursor = -1;

  function move(step) {
    const found = lines();
    if (!found.length) return;
    if (cursor >= 0 && found[cursor]) found[cursor].removeAttribute("data-cursor");
    cursor = Math.max(0, Math.min(found.length - 1, cursor + step));
    found[cursor].setAttribute("data-cursor", "");
    found[cursor].scrollIntoView({ block: "nearest" });
  }

  function lines() {
    return rows() ? [...rows().querySelectorAll("tr:not(.more)")] : [];
  }

  function current() {
    return rows() ? rows().querySelector("tr[data-cursor]") : null;
  }

  function toggle() {
    const box = current() && current().querySelector("input[type=checkbox]");
    if (!box) return;
    box.checked = !box.checked;
    count();
  }

  function open() {
    const link = current() && current().querySelector("a");
    if (link) link.click();
  }

  function requeue() {
    const here = current() && current().querySelector("[data-act=r]");
    const there = document.querySelector("[data-key=r]:not([disabled])");
    if (here || there) (here || there).click();
  }

  function keys() {
    const panel = byId("keys");
    panel.hidden = !panel.hidden;
    byId("keys-open").setAttribute("aria-expanded", String(!panel.hidden));
  }

  const does = {
    "/": () => byId("q").focus(),
    j: () => move(1),
    k: () => move(-1),
    x: toggle,
    r: requeue,
    ".": toggleFreeze,
    "?": keys,
  };

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !byId("q")) return;
    if (event.key === "Escape") document.activeElement.blur();
    if (event.target.closest("input:not([type=checkbox]), textarea, select")) return;
    if (event.key === "Enter" && event.target === body) {
      open();
      return;
    }
    if (does[event.key]) {
      event.preventDefault();
      does[event.key]();
    }
  });
  if (byId("keys-open")) byId("keys-open").addEventListener("click", keys);

  /* ---- Small things. ---- */

  document.addEventListener("click", (event) => {
    const copy = event.target.closest("[data-copy]");
    if (copy && navigator.clipboard) {
      navigator.clipboard.writeText(copy.dataset.copy).then(() => (copy.textContent = "Copied"));
    }
  });
  const more = byId("more-filters");
  if (more) {
    more.addEventListener("click", () => {
      const shown = more.closest("form").toggleAttribute("data-more");
      more.setAttribute("aria-expanded", String(shown));
    });
  }
  if (body.dataset.retry) setTimeout(() => location.reload(), 1000 * Number(body.dataset.retry));

  setInterval(tick, 1000);
  connect();
})();
