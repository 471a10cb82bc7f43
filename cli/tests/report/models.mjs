// Model files for the tests, written as safetensors.
import { writeFileSync } from "node:fs";

function write(path, tensors, attributes) {
  const header = { __metadata__: attributes }, parts = [];
  let at = 0;
  for (const [name, dtype, shape, bytes] of tensors) {
    header[name] = { dtype, shape, data_offsets: [at, at + bytes.length] };
    parts.push(bytes);
    at += bytes.length;
  }
  const text = Buffer.from(JSON.stringify(header)), length = Buffer.alloc(8);
  length.writeBigUInt64LE(BigInt(text.length));
  writeFileSync(path, Buffer.concat([length, text, ...parts]));
}

const floats = (values) => Buffer.from(new Float32Array(values).buffer);
const wave = (count) => floats(Array.from({ length: count }, (_, i) => Math.sin(i * i)));

export const HOSTILE = ["<script>alert(1)</script>", "\"><img src=x onerror=alert(1)>", "</script><b>x", "evil\u202egnp.exe"];

// A small model with everything that the page warns about.
export function writeSmall(path) {
  const layer = (n) => [[`model.layers.${n}.weight`, "F32", [40, 30], wave(1200)], [`model.layers.${n}.bias`, "F32", [30], wave(30 + n)]];
  write(path, [
    ...Array.from({ length: 12 }, (_, n) => layer(n)).flat().map(([name, dtype, shape, bytes]) => [name, dtype, name.endsWith("bias") ? [bytes.length / 4] : shape, bytes]),
    ["stats.nan", "F32", [4], floats([1, NaN, 2, 3])], ["stats.zero", "F32", [500], floats(Array(500).fill(0))],
    ["stats.constant", "F32", [5], floats(Array(5).fill(2.5))], ["stats.ints", "I32", [20, 20], Buffer.from(Int32Array.from({ length: 400 }, (_, i) => i).buffer)],
    ...HOSTILE.map((name) => [name, "U8", [3], Buffer.from([1, 2, 3])]),
  ]);
}

// A model of many small tensors and attributes.
export function writeLarge(path, count) {
  const bytes = wave(16), attributes = Object.fromEntries(Array.from({ length: 1200 }, (_, n) => [`key ${n}`, "text"]));
  write(path, Array.from({ length: count }, (_, n) => [`model.layers.${Math.floor(n / 9)}.block.${n % 9}.weight`, "F32", [4, 4], bytes]), attributes);
}
