// pg-boss with batches, continuous fetching while batches are full, and LISTEN/NOTIFY.
import { act, load, serve } from "./protocol.mjs";

const loaded = await load("pg-boss");
const PgBoss = loaded.PgBoss ?? loaded.default;

const SETTINGS = {
  tuned: { batchSize: 1000, localConcurrency: 4, burstWhenBatchFull: true },
  // It fetches for every queue apart, so many queues need no further concurrency.
  spread: { batchSize: 1000, burstWhenBatchFull: true },
  defaults: {},
  slots: { batchSize: 50, localConcurrency: 2, burstWhenBatchFull: true },
};
const TASKS = ["noop", "nap", "stamp", "fail", ...Array.from({ length: 20 }, (_, n) => `lane${n}`)];

serve((dsn) => {
  let boss;
  const open = async (options) => {
    const opened = new PgBoss({ connectionString: dsn, ...options });
    opened.on("error", () => {});
    await opened.start();
    return opened;
  };
  const idle = { supervise: false, schedule: false };
  return {
    install: async () => {
      const installing = await open(idle);
      for (const task of TASKS) await installing.createQueue(task, { notify: true, retryLimit: 0 });
      await installing.stop({ graceful: false });
    },
    connect: async (connections) => {
      boss = await open({ ...idle, max: connections });
    },
    one: (task, data) => boss.send(task, { data }),
    many: async (specs) => {
      const byTask = Map.groupBy(specs, ({ task }) => task);
      let stored = 0;
      for (const [task, jobs] of byTask) {
        const rows = jobs.map(({ priority, delay, data }) => ({
          data: { data },
          priority,
          ...(delay ? { startAfter: new Date(Date.now() + delay * 1000) } : {}),
        }));
        stored += ((await boss.insert(task, rows, { returnId: true })) ?? rows).length;
      }
      return stored;
    },
    work: async ({ mode, tasks }) => {
      const working = await open(mode === "defaults" ? {} : { useListenNotify: true });
      const handle = (task) => (jobs) => Promise.all(jobs.map((job) => act(task, job.data.data)));
      const settings = SETTINGS[tasks.length > 1 ? "spread" : mode];
      for (const task of tasks) await working.work(task, settings, handle(task));
      await new Promise(() => {});
    },
  };
});
