// Prints the SQL that turns the first database into the second, as one line of JSON.
//
// Both databases are reached by sockets in `sockets`, as the ports 1 and 2. No password is needed.
const { kit, sockets, schemas } = JSON.parse(Deno.args[0]);
const load = (path) => import(`file://${kit}/node_modules/${path}`);
const { default: pg } = await load("pg/lib/index.js");
const { plan, renderPlanFiles, resolveProfile, supabaseProfile } = await load(
  "@supabase/pg-delta/dist/index.js",
);

const pool = (port) =>
  new pg.Pool({ host: sockets, port, user: "postgres", database: "postgres", max: 2 });

// Everything else is left out, in both databases.
const only = (names) => ({
  match: {
    not: {
      any: [
        { schema: names },
        { target: { schema: names } },
        { all: [{ kind: "schema" }, { name: names }] },
        { target: { kind: "schema", name: names } },
      ],
    },
  },
  action: "exclude",
});

const profile = schemas === null ? supabaseProfile : {
  ...supabaseProfile,
  policy: {
    ...supabaseProfile.policy,
    id: "gantry",
    filter: [only(schemas), ...supabaseProfile.policy.filter],
  },
};

const [source, desired] = [pool(1), pool(2)];
try {
  const redactSecrets = true;
  const view = await resolveProfile(source, profile, { redactSecrets });
  const [before, after] = await Promise.all([
    view.extract(source, { redactSecrets }),
    view.extract(desired, { redactSecrets }),
  ]);
  const options = { renames: "off", compact: true, redactSecrets, ...view.planOptions };
  const { files } = renderPlanFiles(
    plan(before.factBase, after.factBase, options),
    { allowDrops: true },
  );
  const left = [...before.diagnostics, ...after.diagnostics]
    .filter(({ severity }) => severity !== "info")
    .map(({ message }) => message.replaceAll(/\s+/g, " ").slice(0, 300));
  const sql = files.map(({ contents }) => contents.trim()).join("\n\n");
  console.log(JSON.stringify({ sql, left: [...new Set(left)].slice(0, 50) }));
} catch (error) {
  console.log(JSON.stringify({ error: String(error?.message ?? error).slice(0, 2000) }));
} finally {
  await Promise.all([source.end(), desired.end()]);
}
