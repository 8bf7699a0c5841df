// The page that opens a file: worker.js reads it, this shows what comes back.
"use strict";
const at = (id) => document.getElementById(id);
const worker = new Worker("worker.js", { type: "module" });
let frame = null, waiting = "";

function state(text) {
    at("state").textContent = text;
}

function failed(text) {
    at("error").textContent = text;
    at("error").hidden = !text;
}

function open(file) {
    if (!file) return;
    failed("");
    waiting = file.name;
    document.title = `${file.name}: ggml_py`;
    if (!at("loading")) state(`${waiting} is read …`);
    worker.postMessage({ file });
}

function show({ error, verdict, plans, number, page, notes }, name) {
    state("");
    failed(error || "");
    if (error) return;
    if (verdict) {
        at("verdict").textContent = verdict;
        at("plans").replaceChildren(...plans.map(([plan, text]) => new Option(text, plan)));
        at("which").hidden = plans.length < 3;
    }
    at("plans").value = number;
    at("notes").textContent = notes;
    for (const id of ["verdict", "tools"]) at(id).hidden = false;
    at("drop").hidden = true;
    // An own origin: the page of a file from anywhere reaches neither this one nor the network.
    if (frame) URL.revokeObjectURL(at("save").href);
    const address = URL.createObjectURL(new Blob([page], { type: "text/html" }));
    at("save").href = address;
    at("save").download = `${name.replace(/\.(json\.gz|json|ggrec|txt|log)$/, "")}.html`;
    if (frame) frame.remove();
    frame = document.createElement("iframe");
    frame.title = `The page of ${name}`;
    frame.sandbox = "allow-scripts allow-downloads";
    frame.src = address;
    document.body.append(frame);
}

worker.onmessage = ({ data }) => {
    if (data.loaded !== undefined && at("loading")) at("loading").value = data.loaded;
    else if (data.ready) state(waiting ? `${waiting} is read …` : `Ready: Python ${data.ready}.`);
    else if (data.answer) show(data.answer, data.name);
    else if (data.error) { state(""); failed(data.error); }
};
worker.onerror = () => {
    state("");
    failed(location.protocol === "file:"
        ? "Browsers run no workers from the disk. Serve the folder: python -m http.server"
        : "The page could not load its own files: pyodide/ and worker.js belong beside it.");
};

for (const id of ["choose", "again"]) at(id).onchange = (event) => open(event.target.files[0]);
at("plans").onchange = (event) => {
    state("The page is drawn …");
    worker.postMessage({ number: event.target.value });
};
addEventListener("dragover", (event) => {
    event.preventDefault();
    document.body.classList.add("over");
});
addEventListener("dragleave", (event) => {
    if (!event.relatedTarget) document.body.classList.remove("over");
});
addEventListener("drop", (event) => {
    event.preventDefault();
    document.body.classList.remove("over");
    open(event.dataTransfer.files[0]);
});
