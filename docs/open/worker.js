// Runs ggml_py under Pyodide, beside the page, which stays alive meanwhile. Everything is loaded
// from the site's own folder, and a file that is opened goes nowhere.
import { loadPyodide } from "./pyodide/pyodide.mjs";

// Says how many bytes have come, of those that `files.json` names. Pyodide loads with `fetch`.
function counted(total) {
    const fetched = self.fetch;
    let done = 0;
    self.fetch = async (...given) => {
        const response = await fetched(...given);
        if (!response.ok || !response.body) return response;
        const count = new TransformStream({
            transform(piece, out) {
                done += piece.byteLength;
                postMessage({ loaded: Math.min(done / total, 1) });
                out.enqueue(piece);
            },
        });
        const { status, statusText, headers } = response;
        return new Response(response.body.pipeThrough(count), { status, statusText, headers });
    };
}

const UNPACK = `
import sys, zipfile
for wheel in wheels:
    zipfile.ZipFile(f"/lib/{wheel}").extractall("/lib/wheels")
sys.path += ["/lib", "/lib/wheels"]
`;

async function started() {
    const { wheels, bytes } = await (await fetch("files.json")).json();
    counted(bytes);
    const python = await loadPyodide({ indexURL: new URL("pyodide/", self.location).href });
    for (const name of [...wheels, "answer.py"]) {
        const content = await (await fetch(name)).arrayBuffer();
        python.FS.writeFile(`/lib/${name}`, new Uint8Array(content));
    }
    python.globals.set("wheels", python.toPy(wheels));
    python.runPython(UNPACK);
    python.FS.mkdir("/files");
    python.FS.chdir("/files");
    python.runPython("import answer");
    postMessage({ ready: python.runPython("sys.version.split()[0]") });
    return python;
}

const python = started().catch((error) => {
    postMessage({ error: `The page could not load its own files: ${error.message}` });
});
let opened = "";

onmessage = async ({ data: { file, number } }) => {
    const run = await python;
    if (!run) return;
    try {
        if (file) {
            const content = new Uint8Array(await file.arrayBuffer());
            // Nothing waits from here on: another file may be opened meanwhile.
            if (opened) run.FS.unlink(opened);
            opened = "";
            run.FS.writeFile(file.name, content);
            opened = file.name;
        }
        const answer = run.pyimport("answer").answer(opened, number);
        postMessage({ answer: JSON.parse(answer), name: opened });
    } catch (error) {
        const last = String(error.message).trim().split("\n").at(-1);
        const why = last.includes("MemoryError") ? "it takes more memory than a browser has" : last;
        const name = file ? file.name : opened;
        postMessage({ answer: { error: `${name} could not be read here: ${why}` }, name });
    }
};
