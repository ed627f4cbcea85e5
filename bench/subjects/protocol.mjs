// What every subject in JavaScript does alike; see protocol.py, whose twin this is.
import { createInterface } from "node:readline";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

export const PAYLOAD = "x".repeat(256);
export const NAP = 5;

const [, , dsn, modules] = process.argv;
const require = createRequire(`${modules}/`);

/** A package from the environment that the harness installed. */
export const load = (name) => import(pathToFileURL(require.resolve(name)));

export const now = () => Number(process.hrtime.bigint()) / 1e9;
export const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

export const tally = { done: 0, first: null, latencies: [] };

export function count() {
  tally.first ??= now();
  tally.done += 1;
}

export async function act(task, data) {
  if (task === "nap") await sleep(NAP);
  if (task === "stamp") tally.latencies.push(now() - Number(data));
  count();
  if (task === "fail") throw new Error("failed on purpose");
}

const say = (message) => process.stdout.write(`${JSON.stringify(message)}\n`);

/** Take the step that often, or until the time is up. */
async function timed(step, times, seconds) {
  let done = 0;
  const began = now();
  let ended = began;
  for (let i = 0; i < times; i += 1) {
    done += await step();
    ended = now();
    if (ended - began > seconds) break;
  }
  return { count: done, began, ended };
}

function sampling(every) {
  let shown = -1;
  setInterval(() => {
    if (tally.done === shown) return;
    shown = tally.done;
    say({ at: now(), done: tally.done, first: tally.first });
  }, every * 1000);
}

function verbs(subject) {
  let connected = 0;
  const connect = async (connections) => {
    if (connected !== connections) await subject.connect(connections);
    connected = connections;
  };
  const one = async () => {
    await subject.one("noop", PAYLOAD);
    return 1;
  };
  return {
    install: async () => subject.install(),
    connect: async ({ connections }) => connect(connections),
    single: async ({ count: times, seconds }) => {
      await connect(1);
      return timed(one, times, seconds);
    },
    concurrent: async ({ count: times, seconds, tasks, connections }) => {
      await connect(connections);
      const began = now();
      const each = () => timed(one, Math.floor(times / tasks), seconds);
      const done = await Promise.all(Array.from({ length: tasks }, each));
      return { count: done.reduce((sum, { count: n }) => sum + n, 0), began, ended: now() };
    },
    bulk: async ({ count: total, seconds, batch = 1000, task = "noop", names = 1, priorities = 1, delay = 0 }) => {
      await connect(1);
      let stored = 0;
      const next = async () => {
        const size = Math.min(batch, total - stored);
        const specs = Array.from({ length: size }, (_, n) => ({
          task: names === 1 ? task : `${task}${(stored + n) % names}`,
          priority: Math.floor((stored + n) / names) % priorities,
          delay,
          data: PAYLOAD,
        }));
        stored += await subject.many(specs);
        return size;
      };
      return timed(next, Math.ceil(total / batch), seconds);
    },
    probe: async ({ count: times, gap }) => {
      await connect(1);
      for (let i = 0; i < times; i += 1) {
        await subject.one("stamp", String(now()));
        await sleep(gap * 1000 * (0.5 + Math.random()));
      }
    },
    work: async ({ mode = "tuned", task = "noop", names = 1, sample = 0.02 }) => {
      const tasks = names === 1 ? [task] : Array.from({ length: names }, (_, n) => `${task}${n}`);
      subject.work({ mode, tasks }).catch((error) => say({ died: String(error) }));
      if (sample) sampling(sample);
    },
    latencies: async () => tally.latencies,
  };
}

/** Obey orders from standard input until it ends. */
export async function serve(make) {
  const known = verbs(make(dsn));
  say({ answer: "ready" });
  for await (const line of createInterface({ input: process.stdin })) {
    const order = JSON.parse(line);
    try {
      say({ answer: (await known[order.do](order)) ?? null });
    } catch (error) {
      say({ error: String(error) });
    }
  }
  process.exit(0);
}
