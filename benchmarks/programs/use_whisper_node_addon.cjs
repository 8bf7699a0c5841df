/** Transcribes two seconds of silence with @kutalia/whisper-node-addon.
 *
 *     cd FOLDER; node use_whisper_node_addon.cjs MODEL.bin
 *
 * FOLDER has node_modules with the package. Prints what it answers.
 */
const path = require("node:path");

const place = path.resolve("node_modules/@kutalia/whisper-node-addon/dist/js/index.js");
const asked = {
    model: path.resolve(process.argv[2]), pcmf32: new Float32Array(32_000), fname_inp: "",
    language: "en", translate: false, use_gpu: false, no_prints: true, n_threads: 2,
};
require(place).transcribe(asked).then(answer => console.log(JSON.stringify(answer)));
