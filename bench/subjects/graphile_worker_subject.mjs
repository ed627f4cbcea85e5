// Graphile Worker, tuned as its page on performance says.
import { act, load, serve } from "./protocol.mjs";

const { Logger, makeWorkerUtils, run, runMigrations } = await load("graphile-worker");

const logger = new Logger(() => () => {});
const TUNED = {
  concurrentJobs: 24,
  maxPoolSize: 25,
  localQueue: { size: 500 },
  completeJobBatchDelay: 0,
  failJobBatchDelay: 0,
};
const SETTINGS = {
  tuned: TUNED,
  defaults: {},
  slots: { ...TUNED, concurrentJobs: 100 },
};

serve((dsn) => {
  const preset = (worker) => ({ worker: { connectionString: dsn, logger, ...worker } });
  let utils;
  const specOf = ({ task, priority, delay, data }) => ({
    identifier: task,
    payload: { data },
    // Its smaller numbers come first.
    priority: -priority,
    maxAttempts: 1,
    ...(delay ? { runAt: new Date(Date.now() + delay * 1000) } : {}),
  });
  return {
    install: () => runMigrations({ preset: preset({}) }),
    connect: async (connections) => {
      utils = await makeWorkerUtils({ preset: preset({ maxPoolSize: Math.max(2, connections) }) });
    },
    one: (task, data) => utils.addJob(task, { data }, { maxAttempts: 1 }),
    many: async (specs) => (await utils.addJobs(specs.map(specOf))).length,
    work: async ({ mode, tasks }) => {
      const handle = (task) => [task, ({ data }) => act(task, data)];
      const runner = await run({
        preset: preset(SETTINGS[mode]),
        taskList: Object.fromEntries(tasks.map(handle)),
        noHandleSignals: true,
        parsedCronItems: [],
      });
      await runner.promise;
    },
  };
});
