// Runs before the modules of a function, in its process: sets the environment, makes every server
// listen on the socket of the instance, and formats the log. Written to the folder of an instance at
// its start. The working directory is that folder.
{
  // Taken before the function can replace them.
  const { serve, inspect, env, stdout, listen, exit } = Deno;
  const encoder = new TextEncoder();
  const SOCKET = "s";
  const DRAIN_MILLIS = 5000;
  // Message of the runtime.
  const NO_MEMORY = "Array buffer allocation failed";

  /** Writes one event, as one line. */
  const emit = (kind: string, level: string, text: string) => {
    const line = encoder.encode(`\x1e${JSON.stringify({ kind, level, text: text.slice(0, 20_000) })}\n`);
    for (let sent = 0; sent < line.length;) sent += stdout.writeSync(line.subarray(sent));
  };
  const describe = (value: unknown) =>
    typeof value === "string" ? value : inspect(value, { colors: false, depth: 4 });
  const levels: Record<string, string> = {
    debug: "Debug", log: "Info", info: "Info", dir: "Info", trace: "Info", warn: "Warning", error: "Error",
  };
  for (const [name, level] of Object.entries(levels)) {
    // deno-lint-ignore no-explicit-any
    (console as any)[name] = (...values: unknown[]) => emit("Log", level, values.map(describe).join(" "));
  }

  const settings = JSON.parse(Deno.readTextFileSync("settings.json"));
  Deno.removeSync("settings.json");
  // Set where the function has no /tmp of its own.
  const temporary = env.get("TMPDIR");
  for (const name of Object.keys(env.toObject())) env.delete(name);
  if (temporary) env.set("TMPDIR", temporary);
  for (const [name, value] of Object.entries(settings.variables)) {
    // A name that no variable can have is left out.
    try { env.set(name, value as string); } catch { /* ignored */ }
  }

  const pending = new Set<Promise<unknown>>();
  const waitUntil = (promise: Promise<unknown>) => {
    const held = Promise.resolve(promise)
      .catch((error) => emit("UncaughtException", "Error", describe(error)))
      .finally(() => pending.delete(held));
    pending.add(held);
    return promise;
  };
  Object.defineProperty(globalThis, "EdgeRuntime", { value: Object.freeze({ waitUntil }) });
  const absent = () => { throw new Error("Supabase.ai is not available on this server"); };
  Object.defineProperty(globalThis, "Supabase", {
    value: { get ai() { return absent(); } },
  });

  globalThis.addEventListener("unhandledrejection", (event) => {
    event.preventDefault();
    emit("UncaughtException", "Error", describe(event.reason));
  });
  globalThis.addEventListener("error", (event) => {
    emit("UncaughtException", "Error", describe(event.error ?? event.message));
  });
  Deno.addSignalListener("SIGTERM", async () => {
    globalThis.dispatchEvent(new Event("beforeunload"));
    const late = new Promise((resolve) => setTimeout(resolve, DRAIN_MILLIS));
    await Promise.race([Promise.allSettled([...pending]), late]);
    emit("Shutdown", "Info", "shutdown");
    exit(0);
  });

  /** The request with the address that the client used. */
  const addressed = (request: Request): Request => {
    const { headers, url } = request;
    const path = url.slice(url.indexOf("/", url.indexOf("://") + 3));
    const host = headers.get("x-forwarded-host") ?? "localhost";
    const scheme = headers.get("x-forwarded-proto") ?? "http";
    // An own property keeps the object, which an upgrade to a WebSocket needs.
    Object.defineProperty(request, "url", { value: `${scheme}://${host}${path}`, configurable: true });
    return request;
  };
  type Handler = (request: Request, info: unknown) => Response | Promise<Response>;
  const wrapped = (handler: Handler): Handler => async (request, info) => {
    try {
      return await handler(addressed(request), info);
    } catch (error) {
      emit("UncaughtException", "Error", describe(error));
      // The memory is used up: the process would fail all requests.
      if (error instanceof RangeError && error.message === NO_MEMORY) exit(1);
      const body = JSON.stringify({ code: "EDGE_FUNCTION_ERROR", message: "Internal Server Error" });
      const headers = { "content-type": "application/json", "sb-error-code": "EDGE_FUNCTION_ERROR" };
      return new Response(body, { status: 500, headers });
    }
  };
  const options = { path: SOCKET, onListen: () => {} };
  Deno.serve = ((first: unknown, second?: unknown) => {
    // deno-lint-ignore no-explicit-any
    const given = [first, second] as any[];
    const handler = given.find((one) => typeof one === "function") ??
      given.map((one) => one?.handler ?? one?.fetch?.bind(one)).find((one) => one !== undefined);
    if (typeof handler !== "function") throw new TypeError("A handler function must be provided.");
    const onError = given.map((one) => one?.onError).find((one) => one !== undefined);
    const signal = given.map((one) => one?.signal).find((one) => one !== undefined);
    // deno-lint-ignore no-explicit-any
    const more: any = { ...options, ...(signal && { signal }), ...(onError && { onError }) };
    const chosen = onError
      ? ((request: Request, info: unknown) => handler(addressed(request), info))
      : wrapped(handler);
    return serve(more, chosen);
  }) as typeof Deno.serve;
  // deno-lint-ignore no-explicit-any
  Deno.listen = ((_: unknown) => listen({ transport: "unix", path: SOCKET })) as any;

  // The project's own services are reached through the server's socket, not through the network.
  if (settings.gateway) {
    const client = Deno.createHttpClient({ proxy: { transport: "unix", path: settings.gateway } });
    const origin = new URL(settings.variables.SUPABASE_URL).origin;
    const direct = globalThis.fetch;
    globalThis.fetch = ((input: RequestInfo | URL, init?: RequestInit) => {
      const target = new URL(input instanceof Request ? input.url : String(input));
      if (target.origin !== origin) return direct(input, init);
      const url = `http://${target.host}${target.pathname}${target.search}`;
      const request = input instanceof Request ? new Request(url, input) : url;
      return direct(request, { ...init, client } as RequestInit);
    }) as typeof fetch;
  }

  // So is the project's database, by the address in SUPABASE_DB_URL.
  const { socket: database, host: databaseHost, ports: databasePorts } = settings.database;
  const isDatabase = (host: unknown, port: unknown) =>
    host === databaseHost && databasePorts.includes(Number(port));
  const { connect } = Deno;
  // deno-lint-ignore no-explicit-any
  Deno.connect = ((target: any) =>
    isDatabase(target?.hostname, target?.port)
      ? connect({ transport: "unix", path: database })
      // deno-lint-ignore no-explicit-any
      : connect(target)) as any;

  if (settings.node) {
    const { Server, Socket } = await import("node:net");
    const socketConnect = Socket.prototype.connect;
    // Called as (options), (port, host), or with the list of both that `net.connect` makes.
    // deno-lint-ignore no-explicit-any
    Socket.prototype.connect = function (this: any, ...values: any[]) {
      const given = Array.isArray(values[0]) ? values[0] : values;
      const options = typeof given[0] === "object" && given[0] !== null
        ? given[0]
        : { port: given[0], host: given[1] };
      if (!isDatabase(options.host, options.port)) return socketConnect.apply(this, values as never);
      const done = given.find((one: unknown) => typeof one === "function");
      return socketConnect.call(this, { path: database }, done);
    // deno-lint-ignore no-explicit-any
    } as any;
    const original = Server.prototype.listen;
    // deno-lint-ignore no-explicit-any
    Server.prototype.listen = function (this: any, ...values: any[]) {
      const done = values.find((one) => typeof one === "function");
      return original.call(this, { path: SOCKET }, done);
    // deno-lint-ignore no-explicit-any
    } as any;
    Server.prototype.address = () => ({ address: "127.0.0.1", family: "IPv4", port: 8000 });
  }
}
