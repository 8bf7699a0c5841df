"""Runs the steps of action.yml as GitHub's runner does, with a GitHub on this machine. Steps with
`uses:` are not run: what they were given is kept."""

import http.server
import json
import os
import re
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from urllib.parse import parse_qs, urlsplit

import yaml

REPO = Path(__file__).resolve().parents[2]
ACTION = yaml.safe_load((REPO / "action.yml").read_text())
BASH = ("bash", "--noprofile", "--norc", "-e", "-o", "pipefail")  # what `shell: bash` means
TOKEN = "the token of the job"
_TERM = re.compile(r"([\w.-]+)(?: (==|!=) '([^']*)')?")


class GitHub:
    """The comments of pull request 7, and what was asked."""

    def __init__(self):
        self.comments, self.asked, self.may_write, self.url = [], [], True, ""

    def wrote(self, login, body):
        """A comment of somebody's; its number."""
        number = 1000 + len(self.comments)
        user = login and {"login": login}
        at = f"https://github.example/pull/7#issuecomment-{number}"
        self.comments.append({"id": number, "user": user, "body": body, "html_url": at})
        return number

    def answer(self, method, path, body):
        """(status, answer) to a request."""
        where = urlsplit(path)
        if method == "GET" and where.path == "/repos/we/fork/issues/7/comments":
            query = {key: int(value) for key, (value,) in parse_qs(where.query).items()}
            first = (query["page"] - 1) * query["per_page"]
            return 200, self.comments[first : first + query["per_page"]]
        if not self.may_write:
            return 403, {"message": "Resource not accessible by integration"}
        if method == "POST" and where.path == "/repos/we/fork/issues/7/comments":
            self.wrote("github-actions[bot]", body["body"])
            return 201, self.comments[-1]
        number = where.path.removeprefix("/repos/we/fork/issues/comments/")
        for comment in self.comments:
            if method == "PATCH" and number == str(comment["id"]):
                comment["body"] = body["body"]
                return 200, comment
        return 404, {"message": "Not Found"}


@contextmanager
def github():
    """Serves a GitHub until the block ends."""
    state = GitHub()

    class Handler(http.server.BaseHTTPRequestHandler):
        def log_message(self, *_args):
            pass

        def do(self):
            length = int(self.headers.get("Content-Length", 0))
            body = json.loads(self.rfile.read(length)) if length else None
            state.asked.append((self.command, self.path))
            known = self.headers["Authorization"] == f"Bearer {TOKEN}"
            status, answer = state.answer(self.command, self.path, body) if known else (401, {})
            data = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_PATCH = do

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state.url = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()


def installed(folder):
    """A folder for PATH with a `python3` whose environments have the present package: they are made
    at once, and note what pip is to install in `pip.txt` beside it."""
    program = folder / "python3"
    here = Path(sys.executable).parent
    program.write_text(f"""#!/bin/sh
[ "$1 $2" = "-m venv" ] && mkdir -p "$3/bin" || exit 9
ln -sf {here}/python {here}/ggml-py "$3/bin/"
printf '#!/bin/sh\\necho "$@" >> "{folder}/pip.txt"\\n' > "$3/bin/pip"
chmod +x "$3/bin/pip"
""")
    program.chmod(0o755)
    return folder


class Done(NamedTuple):
    """What a run of the action left."""

    status: int  # of the step that failed, otherwise 0
    outputs: dict
    summary: str
    said: str
    used: list  # (action, its inputs) of the steps that were not run


def _value(expression, contexts):
    """The value of an expression: a name, comparisons with a text, and `||`."""
    for term in expression.strip().split(" || "):
        name, how, text = _TERM.fullmatch(term).groups()
        found = contexts
        for part in name.split("."):
            found = found[part] if part in found or "outputs" not in name else ""
        value = found if how is None else (found == text) == (how == "==")
        if value:
            return value
    return value


def _filled(text, contexts):
    return re.sub(r"\$\{\{(.*?)\}\}", lambda m: str(_value(m[1], contexts)), str(text))


def run(folder, inputs, event, *, api, path=None, job="plans", workspace=None):
    """Runs the action in a job of the repository we/fork; `path` is put before PATH."""
    unknown = set(inputs) - set(ACTION["inputs"])
    assert not unknown, unknown
    temp = folder / "temp"
    temp.mkdir(exist_ok=True)
    files = {name: temp / name for name in ("event", "summary")}
    files["event"].write_text(json.dumps(event))
    files["summary"].write_text("")
    contexts = {
        "inputs": {name: one.get("default", "") for name, one in ACTION["inputs"].items()} | inputs,
        "github": {"job": job, "token": TOKEN, "sha": "0123abc"},
        "runner": {"os": "Linux", "arch": "X64"},
        "steps": {},
    }
    env = {
        **{name: value for name, value in os.environ.items() if not name.startswith("GITHUB_")},
        "PATH": f"{path}{os.pathsep}{os.environ['PATH']}" if path else os.environ["PATH"],
        "CI": "true", "RUNNER_TEMP": str(temp), "GITHUB_ACTION_PATH": str(REPO),
        "GITHUB_API_URL": api, "GITHUB_SERVER_URL": "https://github.example",
        "GITHUB_REPOSITORY": "we/fork", "GITHUB_RUN_ID": "42",
        "GITHUB_EVENT_PATH": str(files["event"]), "GITHUB_STEP_SUMMARY": str(files["summary"]),
    }  # fmt: skip
    said, used, status = "", [], 0
    for step in ACTION["runs"]["steps"]:
        if not _value(step.get("if", "runner.os"), contexts):
            continue
        if "uses" in step:
            given = {key: _filled(value, contexts) for key, value in step["with"].items()}
            used.append((step["uses"], given))
            contexts["steps"][step.get("id", "")] = {"outputs": {}}
            continue
        script, output = temp / "step.sh", temp / "output"
        script.write_text(_filled(step["run"], contexts))
        output.write_text("")
        own = {name: _filled(value, contexts) for name, value in step.get("env", {}).items()}
        done = subprocess.run(
            [*BASH, str(script)], cwd=workspace or folder, check=False, text=True,
            env={**env, **own, "GITHUB_OUTPUT": str(output)},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        lines = output.read_text().splitlines()
        contexts["steps"][step.get("id", "")] = {
            "outputs": dict(line.split("=", 1) for line in lines)
        }
        said, status = said + done.stdout, done.returncode
        if status:
            break
    outputs = {name: _filled(one["value"], contexts) for name, one in ACTION["outputs"].items()}
    return Done(status, outputs, files["summary"].read_text(), said, used)
