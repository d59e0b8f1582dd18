// Builds what the Python package carries: `npm run build`. Each built file names the sources it was
// made from by their digest, so that a test without Node can tell a stale one (tests/test_assets.py).
import { createHash } from "node:crypto";
import { existsSync, mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { dirname, join, relative, sep } from "node:path";
import { fileURLToPath } from "node:url";
import * as esbuild from "esbuild";

const here = dirname(fileURLToPath(import.meta.url));
const src = join(here, "src");
const pack = join(here, "..", "src", "gpusight");

/** Files below a folder, in the order of their paths. */
function filesBelow(folder) {
  return readdirSync(folder, { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile())
    .map((entry) => join(entry.parentPath ?? entry.path, entry.name))
    .sort((a, b) => (slashed(a) < slashed(b) ? -1 : 1));
}

const slashed = (path) => relative(src, path).split(sep).join("/");

/** What the sources are, as one number: path and content of each. */
function digestOfSources() {
  const hash = createHash("sha256");
  for (const path of filesBelow(src)) hash.update(`${slashed(path)}\0`).update(readFileSync(path)).update("\0");
  return hash.digest("hex");
}

const common = { bundle: true, charset: "utf8", legalComments: "none", logLevel: "warning", target: "es2022" };

const outputs = [
  ["timeline/main.ts", "web/static/timeline.js"],
  ["timeline/timeline.css", "web/static/timeline.css"],
  ["report/main.ts", "render/html/assets/report.js"],
  ["report/report.css", "render/html/assets/report.css"],
];

/** What the package should hold: path and content of every file. */
async function built() {
  const banner = `/* Built from frontend/src by frontend/build.mjs; do not edit. sources sha256:${digestOfSources()} */`;
  const files = [[join(pack, "web/static/index.html"), readFileSync(join(src, "timeline/index.html"))]];
  for (const [from, to] of outputs) {
    const path = join(pack, to);
    const result = await esbuild.build({
      ...common,
      entryPoints: [join(src, from)],
      outfile: path,
      write: false,
      format: "iife",
      minify: true,
      banner: { js: banner, css: banner },
    });
    files.push([path, Buffer.from(result.outputFiles[0].contents)]);
  }
  return files;
}

async function build() {
  for (const [path, content] of await built()) writeFileSync(path, content);
}

/** Fails where the package holds something else than the sources give. */
async function check() {
  const stale = (await built()).filter(([path, content]) => !existsSync(path) || !readFileSync(path).equals(content));
  for (const [path] of stale) console.error(`${relative(pack, path)} is not what frontend/src gives: run scripts/frontend`);
  process.exitCode = stale.length ? 1 : 0;
}

async function buildTests() {
  const out = join(here, ".tests");
  rmSync(out, { recursive: true, force: true });
  mkdirSync(out);
  await esbuild.build({
    ...common,
    entryPoints: filesBelow(join(here, "test")).filter((path) => path.endsWith(".test.ts")),
    outdir: out,
    outExtension: { ".js": ".mjs" },
    format: "esm",
    platform: "node",
  });
}

const [task] = process.argv.slice(2);
await (task === "--tests" ? buildTests() : task === "--check" ? check() : build());
