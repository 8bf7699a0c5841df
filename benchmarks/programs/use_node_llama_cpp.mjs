/** Makes four tokens with node-llama-cpp.
 *
 *     cd FOLDER; node use_node_llama_cpp.mjs MODEL.gguf
 *
 * FOLDER has node_modules with node-llama-cpp. Prints the tokens and their text.
 */
import path from "node:path";
import {pathToFileURL} from "node:url";

const place = path.resolve("node_modules/node-llama-cpp/dist/index.js");
const {getLlama, LlamaLogLevel} = await import(pathToFileURL(place).href);
const llama = await getLlama({
    gpu: false, build: "never", skipDownload: true, maxThreads: 2, progressLogs: false,
    logLevel: LlamaLogLevel.warn,
});
const model = await llama.loadModel({modelPath: path.resolve(process.argv[2]), gpuLayers: 0});
const context = await model.createContext({contextSize: 128, batchSize: 64, threads: 2});
const tokens = [];
for await (const token of context.getSequence().evaluate(model.tokenize("hello"), {temperature: 0}))
    if (tokens.push(token) === 4)
        break;
console.log(JSON.stringify(tokens), JSON.stringify(model.detokenize(tokens)));
await llama.dispose();
