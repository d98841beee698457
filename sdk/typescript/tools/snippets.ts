/**
 * Makes one program of the TypeScript blocks of a Markdown file, with the same line numbers.
 *
 *   with-tools ./snippets ../../docs/sdk-typescript.md
 */

import { readFileSync, writeFileSync } from "node:fs";
import process from "node:process";

const [path = "", target = ""] = process.argv.slice(2);
let isCode = false;
let count = 0;
const lines = readFileSync(path, "utf8")
  .split("\n")
  .map((line) => {
    if (line === "```ts" || line === "```") {
      count += line === "```ts" ? 1 : 0;
      isCode = line === "```ts";
      return "";
    }
    return isCode ? line : "";
  });
if (count === 0) throw new Error(`${path} has no TypeScript in it`);
writeFileSync(target, lines.join("\n"));
